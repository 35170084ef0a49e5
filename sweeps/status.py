"""python -m sweeps.status DIR: a line per run of a sweep: status, step, loss, time left, errors; then the counts."""

import sys
from pathlib import Path

from rich.console import Console

from configs import cli
from sweeps import state
from sweeps.display import aligned, row, summary, table


def main(argv: list[str]) -> int:
    """The command. Reads files only: it works beside a launcher, on another machine, and without JAX."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("directory", metavar="DIR", help="the sweep's directory (--out of sweeps.launch)")
    directory = Path(parser.parse_args(argv).directory)
    board = state.standings(directory)
    if sys.stdout.isatty():
        Console().print(table(board, {}))
    else:
        print("\n".join(aligned([row(key, run) for key, run in board.items()])))
        print(f"\n{summary(board)}")
    extra = state.strangers(directory, list(board))
    if extra:
        print(f"no longer in the sweep file: {', '.join(extra)}")
    return 0


if __name__ == "__main__":
    cli.main(main)
