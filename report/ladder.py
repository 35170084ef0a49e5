"""`python -m report.ladder DIR [--json=OUT]`: each arm's compute-equivalent gain in a sweep with a ladder of budgets.

For every arm and rung: C'/C, where the baseline would reach the arm's loss with C' FLOPs of training
(report/statistics/gains.py), with its 95% interval over seeds; the same in wall time; whether the ranking survives
scale, by tests after Holm's correction over all claims of the report; and a joint fit of all arms beside it.
docs/ladder.md says how to read it.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m report.ladder")

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path

from configs import cli
from configs.errors import UserError
from report.claims.comparing import claims
from report.claims.ladder import Results, as_json, end_label, sentences
from report.files import write
from report.page.formats import DASH, TIMES, count, counted
from report.reading.directories import Study, Sweep, read

SCHEMA = 1
WIDTH = 100  # columns of the printed output
COLUMNS = ("arm", "rung", "FLOPs", "loss", "gain", "95% interval", "in time", "tokens/s")


def rows(result: Results) -> list[tuple[str, ...]]:
    """Returns the table's cells, a row per arm and rung, as COLUMNS."""
    cells: list[tuple[str, ...]] = []
    for name, one in result.arms.items():
        for level in one.levels:
            gain = level.gain
            shown = ("refused", "", "") if gain.refused else (
                f"{gain.gain:.3g}{TIMES}",
                f"[{end_label(gain, 'low')}, {end_label(gain, 'high')}]",
                f"{gain.gain * level.time:.3g}{TIMES}" if math.isfinite(level.time) else DASH,
            )  # fmt: skip
            cells.append(
                (name, counted(level.value), count(gain.flops), f"{gain.loss:.4f}", *shown, count(level.speed))
            )
    return cells


def table(result: Results) -> list[str]:
    """Returns the table as lines of at most WIDTH columns; long names are shortened in the middle."""
    cells = [COLUMNS, *rows(result)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    spare = WIDTH - (sum(widths) + 2 * (len(widths) - 1))
    widths[0] = max(8, widths[0] + min(0, spare))
    lines = []
    for row in cells:
        first = (
            row[0]
            if len(row[0]) <= widths[0]
            else f"{row[0][: widths[0] // 2 - 1]}..{row[0][-(widths[0] - widths[0] // 2 - 1) :]}"
        )
        lines.append(
            "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        )
    return [line.rstrip() for line in lines]


def wrapped(sentence: str) -> list[str]:
    """Returns a sentence in lines of at most WIDTH columns."""
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")


def ladders(sweep: Sweep) -> list[Study]:
    """Returns the studies of a sweep that have a ladder.

    Raises:
        UserError: there is none.
    """
    collected = [study for study in sweep.studies if study.ladder is not None]
    if not collected:
        raise UserError(
            f"{sweep.directory}: has no ladder; a sweep file declares one with "
            'ladder=dict(by="budget.amount", values=[...])'
        )
    return collected


def show(result: Results, say: Callable[[str], None] = print) -> None:
    """Prints a study's table and sentences."""
    if not result.refused:
        for line in table(result):
            say(line)
        if any(level.gain.beyond for one in result.arms.values() for level in one.levels):
            say("* beyond the baseline's ladder: extrapolated along its last slope")
        say(f"speeds: {result.speeds}")
        say("")
    for sentence in sentences(result):
        for line in wrapped(sentence):
            say(line)


def main(argv: list[str]) -> int:
    """Prints each ladder's gains; returns 1 if a ladder, or every arm of one, is refused."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("directory", metavar="DIR", help="a sweep directory whose sweep has a ladder")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the gains as JSON: arms.NAME.{gain, low, high, rungs}"
    )
    args = parser.parse_args(argv)
    sweep = read(args.directory)
    collected = [one for study in ladders(sweep) if (one := claims(study).ladder) is not None]
    for fault in sweep.faults:
        print(f"could not be read: {fault}")
    for one in collected:
        show(one)
    if args.json:
        parts = {one.study: as_json(one) for one in collected}
        arms = {name: arm for part in parts.values() for name, arm in part["arms"].items()}
        content = {"schema": SCHEMA, "sweep": sweep.name, "arms": arms}
        content["studies"] = {name: part["study"] for name, part in parts.items()}
        try:
            write(Path(args.json), json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--json={args.json}: cannot be written: {error.strerror}") from error
    return 0 if all(_answered(one) for one in collected) else 1


def _answered(result: Results) -> bool:
    others = [one for name, one in result.arms.items() if name != result.baseline]
    return not result.refused and any(one.head is not None for one in others)


if __name__ == "__main__":
    cli.main(main)
