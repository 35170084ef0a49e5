"""The pages of docs/: one a study, and the table of all verdicts. All of it is made from declarations and results."""

import math
from collections.abc import Sequence

from report.page.formats import PLUS_MINUS, count, counted, decimals, fixed, interval, listed, plural
from studies.figures import estimate, name_of
from studies.results import Results
from studies.spec import LOCAL, LOSS, MEASURES, SHARES, TRAINED, Cell, Study
from studies.verdicts import MISSING, OPEN, REVERSED, SHOWS, Verdict

MADE = "<!-- Made by `python -m studies.build` from studies/; do not edit. -->"
POINTS = 100.0
PREFACE = """\
One row for each published ordering: *shows*, *reversed*, or *not resolved at this size*, which is not "equal". Models
here have up to a million parameters and see minutes of training, so a row says whether an ordering can be seen at this
size, and nothing about the models that it was published for. Differences are the first condition minus the second,
nats a token unless said otherwise, paired by seed, with 95% intervals; a verdict also passes Holm's correction over its
study. Every study has a protocol that was written before its runs, and every page and figure is made from committed
results alone: `python -m studies.build`. `make study NAME=heads` runs one again.""".splitlines()


def size(one: Verdict) -> str:
    """Returns a difference with its 95% interval; shares in points."""
    gap = one.difference
    if one.verdict == MISSING:
        return "not measured"
    factor = POINTS if one.share else 1.0
    places = 1 if one.share else decimals(gap.half)
    sign = "+" if gap.mean > 0 else ""
    unit = " points" if one.share else ""
    return f"{sign}{fixed(factor * gap.mean, places)}{unit} {interval(factor * gap.low, factor * gap.high, places)}"


def sign_of(one: Verdict) -> str:
    """Returns the published direction of `cell - against`."""
    care = one.ordering.care
    least = f"{POINTS * care:g} points" if one.share else f"{care:g}"
    return {1: "above 0", -1: "below 0", 0: f"within {PLUS_MINUS}{least}"}[one.ordering.sign]


def overview(studies: Sequence[tuple[Study, Results | None, Sequence[Verdict]]]) -> str:
    """Returns docs/studies.md."""
    judged = [one for _, _, verdicts in studies for one in verdicts if one.verdict != MISSING]
    found = [one for one in judged if not one.ordering.control]
    lines = [
        "# Published comparisons, run again",
        "",
        MADE,
        "",
        *PREFACE,
        "",
        _tally(found),
        "",
    ]
    for study, results, verdicts in studies:
        lines += [f"## [{study.title}](studies/{study.name}.md)", "", study.question, ""]
        lines += _table(study, results, verdicts) if results else [_not_run(study)]
        lines += ["", *_left_out(study)] if study.not_run else []
        lines.append("")
    contradicted = [(study, one) for study, _, verdicts in studies for one in verdicts if one.verdict == REVERSED]
    if contradicted:
        lines += ["## Contradicted", ""]
        lines += ["Published orderings that came out the other way round, and what was done to be sure of each:", ""]
        lines += [f"- **{one.ordering.claim}** ({one.ordering.source}; [{study.title}](studies/{study.name}.md)): "
                  f"{size(one)}, {_seeds(one)}. {study.check_of(one.ordering)}"
                  for study, one in contradicted]  # fmt: skip
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _tally(found: Sequence[Verdict]) -> str:
    parts = [f"{sum(one.verdict == verdict for one in found)} {verdict}" for verdict in (SHOWS, REVERSED, OPEN)]
    return f"Verdicts so far on {plural(len(found), 'published ordering')}: {listed(parts)}."


def _not_run(study: Study) -> str:
    runs = f"`make study NAME={study.name}` runs it; its protocol and sweep files are there."
    return " ".join(["Not run yet.", *([study.hours] if study.hours else []), runs])


def _left_out(study: Study) -> list[str]:
    """Returns what a study has not run, each with the hours of one core that it needs."""
    return ["Not run, with the hours of one core that it needs:", ""] + [
        f"- {what}: {hours:,.3g}" for what, hours in study.not_run.items()
    ]


def _table(study: Study, results: Results, verdicts: Sequence[Verdict]) -> list[str]:
    hours = sum(one["cpu_hours"] for one in results.about["sweeps"].values())
    lines = ["| ordering | published | expected | difference here | seeds | p (Holm) | verdict |", "|" + "---|" * 7]
    for one in verdicts:
        ordering = one.ordering
        p = "" if not math.isfinite(one.p_holm) else "<0.001" if one.p_holm < 0.001 else fixed(one.p_holm)
        what = f"{ordering.claim} ({ordering.source})" if not ordering.control else f"*Control:* {ordering.claim}"
        seeds = len(one.difference.seeds)
        lines.append(
            f"| {what} | {ordering.published} | {sign_of(one)} | {size(one)} | {seeds} | {p} | {one.verdict} |"
        )
    family = max((one.family for one in verdicts), default=0)
    lines += [
        "",
        f"{_looks(results)}; {hours:.2f} CPU hours; Holm's correction over {plural(family, 'comparison')}.",
    ]
    return lines


def _looks(results: Results) -> str:
    """Returns how often the study was looked at, and the level of its tests and intervals where not once."""
    if results.looks == 1:
        return "1 look"
    level = f"{100 * results.level:.3g}%"
    return f"{plural(results.looks, 'look')}, so that tests and intervals are at {level}, the level of the last"


def _seeds(one: Verdict) -> str:
    return plural(len(one.difference.seeds), "seed")


def page(
    study: Study, results: Results | None, verdicts: Sequence[Verdict], figures: Sequence[tuple[str, str, str]]
) -> str:
    """Returns docs/studies/NAME.md.

    Args:
        figures: (file name, title, caption) of each figure.
    """
    lines = [
        f"# {study.title}",
        "",
        MADE,
        "",
        study.question,
        "",
        f"[Protocol](../../studies/{study.name}/protocol.md), written before the runs; [declaration](../../studies/"
        f"{study.name}/study.py); {listed([f'[{file}](../../studies/{study.name}/{file})' for file in study.sweeps])}.",
        "",
        "```sh",
        f"make study NAME={study.name}      # runs it again; a stopped run continues",
        f"python -m studies.build {study.name}   # this page and its figures, from the committed results",
        "```",
        "",
        "## Published",
        "",
        "| source | setting | figures | claim |",
        "|---|---|---|---|",
        *(f"| {one.source} | {one.setting} | {one.figures} | {one.claim} |" for one in study.published),
        "",
        "(Transcribed.)",
        "",
        "## Verdicts",
        "",
    ]
    if results is None:
        left = ["", *_left_out(study)] if study.not_run else []
        return "\n".join([*lines, _not_run(study), *left]) + "\n"
    lines += _table(study, results, verdicts)
    lines += ["", _smallest(verdicts)]
    for file, title, caption in figures:
        lines += ["", f"![{title}]({file})", "", f"({caption})"]
    if study.remarks:
        lines += ["", "## What to make of it", "", *(f"- {one}" for one in study.remarks)]
    if study.not_run:
        lines += ["", "## What was not run", "", *_left_out(study)]
    lines += ["", "## What was measured", "", *_arms(study, results), "", *_conditions(study, results), *_runs(results)]
    return "\n".join(lines).rstrip() + "\n"


def _smallest(verdicts: Sequence[Verdict]) -> str:
    open_ = [one for one in verdicts if one.verdict == OPEN and math.isfinite(one.smallest_seen)]
    if not open_:
        return "A resolved difference is significant at 5% after Holm's correction."
    shown = [f"{index_of(verdicts, one)}: {POINTS * one.smallest_seen:.0f} points" if one.share else
             f"{index_of(verdicts, one)}: {fixed(one.smallest_seen)}" for one in open_]  # fmt: skip
    return (
        "Of what is not resolved, the smallest true difference that would have been seen 4 times in 5, by row: "
        f"{'; '.join(shown)}."
    )


def index_of(verdicts: Sequence[Verdict], one: Verdict) -> int:
    """Returns the row of a verdict, as the forest plot numbers it."""
    return next(index for index, other in enumerate(verdicts, 1) if other is one)


def _arms(study: Study, results: Results) -> list[str]:
    """Returns a table of the arms' loss at the training length and the study's own columns."""
    arms = list(dict.fromkeys(row.arm for row in results.rows))
    lines = ["| arm | seeds | loss, nats/token | " + " | ".join(study.columns.values()) + " |"]
    lines = [lines[0].replace("|  |", "|"), "|" + "---|" * (3 + len(study.columns))]
    for arm in arms:
        one = estimate(results, Cell(arm))
        numbers = [_shown(measure, results.number(arm, measure)) for measure in study.columns]
        lines.append(f"| {' | '.join([arm, str(one.count), _estimate(one.mean, one.half, 3), *numbers])} |")
    return lines


def _shown(measure: str, value: float) -> str:
    if not math.isfinite(value):
        return "\N{EM DASH}"
    if measure in ("kv_bytes_per_token", "decode_bytes_per_step", "parameters"):
        return counted(round(value))
    return count(value)


def _estimate(mean: float, half: float, places: int) -> str:
    noise = f" {PLUS_MINUS}{half:.{places}f}" if math.isfinite(half) else ""
    return f"{fixed(mean, places)}{noise}"


def _conditions(study: Study, results: Results) -> list[str]:
    """Returns a table for each measure at lengths: arms and scalings down, lengths across."""
    lines: list[str] = []
    for measure in MEASURES:
        rows = [row for row in results.rows if row.measure == measure and row.length]
        if measure == LOCAL:  # of the run as trained, whatever scaling it stands beside
            rows = [row for row in rows if row.scaling == TRAINED]
        lengths = sorted({row.length for row in rows})
        if measure == LOSS or len(lengths) < 2:
            continue
        names = list(dict.fromkeys((row.arm, row.scaling) for row in rows))
        lines += [f"{MEASURES[measure].capitalize()}, mean over seeds:", ""]
        lines += [
            "| condition | " + " | ".join(counted(length) for length in lengths) + " |",
            "|---" * (len(lengths) + 1) + "|",
        ]
        for arm, scaling in names:
            cells = [Cell(arm, measure, length, scaling) for length in lengths]
            name = name_of(cells[0]) if scaling != TRAINED else arm
            lines.append(f"| {name} | " + " | ".join(_mean(results, cell) for cell in cells) + " |")
        lines.append("")
    return lines


def _mean(results: Results, cell: Cell) -> str:
    one = estimate(results, cell)
    if not one.count:
        return "\N{EM DASH}"
    return f"{POINTS * one.mean:.1f}%" if cell.measure in SHARES else _estimate(one.mean, one.half, 3)


def _runs(results: Results) -> list[str]:
    about = results.about
    lines = []
    for file, one in about["sweeps"].items():
        left = f"; not done: {', '.join(one['not_done'])}" if one["not_done"] else ""
        lines.append(f"- `{file}`: {plural(one['runs'], 'run')}, {one['cpu_hours']:.2f} CPU hours{left}.")
    versions = ", ".join(
        f"{name} {version}" for name, version in about["versions"].items() if name in ("python", "jax")
    )
    return [*lines, f"- {about['date']}, source {listed(about['commits']) or 'not recorded'}; {versions}."]
