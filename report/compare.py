"""`python -m report.compare DIR1 DIR2 ...`: compares arms of several sweeps (or single runs).

Studies with the same name are combined; if every directory has one study, those are, whatever their names. The baseline
is the first directory's. Without --out the text and the tables are printed; with it a whole report, page and plots, is
written there. Differences between the sweeps (data, budget, device, commit) are marked as within one sweep.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m report.compare")

import dataclasses
import os
import textwrap
from collections import Counter
from pathlib import Path

from configs import cli
from configs.errors import UserError, nearest
from configs.terminal import plain
from report import build, options
from report.claims import verdict, words
from report.claims.comparing import shown
from report.page import table, terminal
from report.reading.directories import Arm, Study, Sweep, read


def combined(directories: list[str] | list[Path], baseline: str | None = None) -> Sweep:
    """Returns the sweeps as one. Arms keep their names, with their sweep's name added if two have the same.

    Args:
        directories: two or more sweep or run directories.
        baseline: an arm's name in the combined sweep; None: the first directory's baseline.

    Raises:
        UserError: fewer than two directories, a repeated one, one that is neither, or an unknown baseline.
    """
    paths = [Path(directory).absolute() for directory in directories]
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UserError(f"{', '.join(map(str, directories))}: two or more different directories are needed")
    sweeps = [read(path) for path in paths]
    labels = _labels(paths)
    groups: dict[str, list[tuple[str, Study]]] = {}
    alone = all(len(sweep.studies) == 1 for sweep in sweeps)
    for label, sweep in zip(labels, sweeps, strict=True):
        for study in sweep.studies:
            groups.setdefault("" if alone else study.name, []).append((label, study))
    studies = [_together(result) for result in groups.values()]
    if baseline is not None:
        studies = _from(studies, baseline)
    title = " and ".join(dict.fromkeys(sweep.title for sweep in sweeps))
    faults = [f"{label}: {fault}" for label, sweep in zip(labels, sweeps, strict=True) for fault in sweep.faults]
    root = Path(os.path.commonpath(paths))
    return Sweep(root, ", ".join(labels), title, "", "", studies, faults=faults, together=True)


def _labels(paths: list[Path]) -> list[str]:
    """Returns each directory's shortest unique suffix."""
    for depth in range(1, 1 + max(len(path.parts) for path in paths)):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in paths]


def _together(results: list[tuple[str, Study]]) -> Study:
    counts = Counter(arm.name for _, study in results for arm in study.arms)
    arms = [_named(arm, label, counts[arm.name] > 1) for label, study in results for arm in study.arms]
    label, first = results[0]
    known = first.baseline or (first.arms[0].name if first.arms else None)
    baseline = f"{known} ({label})" if known is not None and counts[known] > 1 else known
    return dataclasses.replace(
        first,
        title=" and ".join(dict.fromkeys(study.title for _, study in results)),
        question=first.question if len({study.question for _, study in results}) == 1 else "",
        baseline=baseline,
        evals=list(dict.fromkeys(name for _, study in results for name in study.evals)),
        arms=arms,
        seeds=list(dict.fromkeys(seed for _, study in results for seed in study.seeds)),
        selection=None,  # each sweep's own report has its trials; here the chosen arms are compared
    )


def _named(arm: Arm, label: str, shared: bool) -> Arm:
    name = f"{arm.name} ({label})" if shared else arm.name
    return dataclasses.replace(arm, name=name, runs=[dataclasses.replace(run, arm=name) for run in arm.runs])


def _from(studies: list[Study], baseline: str) -> list[Study]:
    names = [arm.name for study in studies for arm in study.arms]
    if baseline not in names:
        raise UserError(f"--baseline={baseline}: no such arm; there are {', '.join(names)}{nearest(baseline, names)}")
    return [
        dataclasses.replace(study, baseline=baseline) if study.arm(baseline) is not None else study for study in studies
    ]


def summary(sweep: Sweep) -> str:
    """Returns the result, the comparisons, what is not like for like, and a table that fits a terminal."""
    parts = [f"{words.state(sweep)}"]
    parts += [f"could not be read: {fault}" for fault in sweep.faults]
    for study in sweep.studies:
        sentences = [*words.arms(study), *words.comparability(study)]
        answer = [line for line in (verdict.headline(study), words.preface(study)) if line]
        said = [*answer, *(f"- {shown(one.verdict)}: {one.text}" for one in sentences)]
        parts.append("\n".join(_wrapped(line) for line in said))
        parts.append("\n".join([study.title, *terminal.lines(table.build(study))]))
    return "\n\n".join(parts)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, terminal.WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def main(argv: list[str]) -> None:
    """Prints the comparison, or writes it as a report."""
    args = options.compare(__doc__ or "").parse_args(argv)
    sweep = combined(args.directories, args.baseline)
    if args.out is None:
        print(plain(summary(sweep), keep="\n"))
        return
    out = Path(args.out)
    if any((out / name).exists() for name in ("sweep.json", "run.json")):
        raise UserError(f"--out={out}: is itself a sweep or a run; use another folder")
    print(build.write_report(sweep, out))


if __name__ == "__main__":
    cli.main(main)
