"""python -m tests.switches: every position and attention switch against what must hold of it, as a table.

Tiny models against formulas written again in float64. Exits with 1 where something does not hold.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from configs import cli
from configs.errors import UserError, nearest
from eval.progress import Reporter
from tests.switches import table
from tests.switches.cases import CASES
from training.run_directory import files
from training.runtime import compilation
from training.runtime.fast_compile import hasten


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--out", default="docs/switches.md", help="the file to write (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="SWITCH", help="this row alone, printed; may be repeated")
    args = parser.parse_args(list(argv))
    for name in args.only or ():
        if name not in CASES:
            raise UserError(f"--only: {name!r} is no switch of the table{nearest(name, CASES)}")
    compilation.enable_cache()
    progress = Reporter()
    rows = {}
    for name in progress.track("switches", args.only or CASES, len(args.only or CASES)):
        rows[name] = table.row(name)
        progress.say(f"{name}: {table.words(rows[name])}")
    text = table.markdown(rows)
    if args.only:
        print(text)
    else:
        files.write_text(Path(args.out), text)
        progress.say(f"switches: {args.out}")
    return 0 if all(cell.holds for row in rows.values() for cell in row.values()) else 1


if __name__ == "__main__":
    # A GPU or TPU would round products; the formulas are what is asked about.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    hasten()
    cli.main(main)
