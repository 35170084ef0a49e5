"""python -m tests.switches: every position and attention switch against what must hold of it, as a table.

Tiny models against formulas written again in float64. Exits with 1 where something does not hold.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from configs import cli
from configs.errors import UserError, nearest
from eval.progress import Told
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
    given = parser.parse_args(list(argv))
    for name in given.only or ():
        if name not in CASES:
            raise UserError(f"--only: {name!r} is no switch of the table{nearest(name, CASES)}")
    compilation.enable_cache()
    progress = Told()
    rows = {}
    for name in progress.track("switches", given.only or CASES, len(given.only or CASES)):
        rows[name] = table.row(name)
        progress.say(f"{name}: {table.words(rows[name])}")
    text = table.markdown(rows)
    if given.only:
        print(text)
    else:
        files.write_text(Path(given.out), text)
        progress.say(f"switches: {given.out}")
    return 0 if all(cell.holds for row in rows.values() for cell in row.values()) else 1


if __name__ == "__main__":
    # A GPU or TPU would round products; the formulas are what is asked about.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    hasten()
    cli.main(main)
