"""The `ablax` command: every command of the project under one name, from any folder.

    ablax train --config=configs/lm.py --workdir=runs/h8
    ablax sweep --sweep=configs/sweeps/demo.py --out=runs/demo

`ablax --help` lists the commands. The project stays in its checkout: this file is there, and the installed command
imports the packages beside it, from any folder. Files are relative to the user's folder; a config or sweep file that
does not exist there is looked up in the checkout.
"""

import signal
import sys
from pathlib import Path

CHECKOUT = str(Path(__file__).resolve().parent)


def main() -> None:
    """Runs a command; the entry point of the installed script. Ctrl-C counts from the first line on."""
    if CHECKOUT not in sys.path:
        sys.path.insert(0, CHECKOUT)
    try:
        from configs import interrupt

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt.handler)
        from configs import cli, commands
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)

    def run(argv: list[str]) -> int | None:
        if argv[:1] in ([commands.COMPLETION], [commands.COMPLETE]):
            from configs import completion

            return completion.main(argv)
        return commands.main(argv)

    cli.main(run)


if __name__ == "__main__":
    main()
