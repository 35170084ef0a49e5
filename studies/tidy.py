"""From the sweep directories of a study to its results: `python -m studies.tidy heads --from=runs/studies/heads`."""

if not __package__:  # it was started by its path, from where nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m studies.tidy")

import datetime
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from configs import cli
from configs.documents import ordinary
from configs.errors import UserError
from report.reading.directories import Arm, Run, Sweep, dig, lower_rungs, number, read
from report.reading.directories import Study as Study_
from report.reading.measures import (
    from_eval,
    loss_control_points,
    loss_points,
    pieces,
    retrieval_points,
    sliding_points,
)
from report.statistics.text_noise import Pieces
from studies import declared
from studies.results import ROOT, Results, Row, save
from studies.spec import ACCURACY, LOCAL, LOSS, LOSS_AT, SLIDING, Study

NUMBERS = {  # numbers of a run that are shown and not compared: where they stand
    "parameters": ("info", "parameters", "total"),
    "flops_per_token": ("info", "flops_per_token", "value"),
    "train_seconds": ("info", "wall_time", "train"),
    "kv_bytes_per_token": ("info", "kv_bytes_per_token"),
    "decode_tokens_per_second": ("throughput", "decode", "tokens_per_second"),
    "decode_bytes_per_step": ("throughput", "decode", "bytes_per_step"),
}


def tidy(study: Study, directory: Path, root: Path = ROOT) -> Results:
    """Reads a study's sweep directories.

    Args:
        study: its declaration.
        directory: holds a sweep directory for each of the study's sweep files, by the file's stem.
        root: where the study's folder with those files lies.

    Raises:
        UserError: a sweep is missing, was made from another file or with other settings, or two arms have one name.
    """
    rows: list[Row] = []
    text: dict[tuple[str, int], Pieces] = {}
    sweeps, runs = {}, []
    studies: dict[str, str] = {}
    for file in study.sweeps:
        sweep = read(directory / Path(file).stem)
        _check(sweep, root / study.name / file)
        arms = [arm for one in sweep.studies for arm in [*one.arms, *lower_rungs(one)]]
        known = {row.arm for row in rows}
        if twice := sorted(known & {arm.name for arm in arms}):
            raise UserError(f"{file}: arm {twice[0]} is in another sweep of the study too")
        rows += [row for arm in arms for row in rows_of(arm)]
        text |= {(arm.name, run.seed): found for arm in arms for run in arm.done if (found := pieces(run)) is not None}
        sweeps[file] = _sweep(sweep, arms)
        studies |= {arm.name: name for one in sweep.studies for name, arm in _named(one)}
        runs += [run for arm in arms for run in arm.runs]
    return Results(tuple(rows), {"study": study.name, **_made(runs), "sweeps": sweeps, "arms": studies}, text)


def _named(study: Study_) -> list[tuple[str, Arm]]:
    """Returns each arm with the name of its study; the rungs of a ladder are studies of their own."""
    lower = {id(arm): f"{study.name}@{value:g}" for value, rung in _rungs(study) for arm in rung}
    return [(lower.get(id(arm), study.name), arm) for arm in [*study.arms, *lower_rungs(study)]]


def _rungs(study: Study_) -> list[tuple[float, list[Arm]]]:
    """Returns the rungs of a ladder below its top, each with its arms."""
    if study.ladder is None:
        return []
    return [
        (value, list(rung.values())) for value, rung in study.ladder.rungs.items() if value < max(study.ladder.rungs)
    ]


def rows_of(arm: Arm) -> list[Row]:
    """Returns all numbers of an arm's finished runs."""
    found = [Row(arm.name, run.seed, LOSS, value=from_eval("loss", "loss")(run)) for run in arm.done]
    for measure, points in ((LOSS_AT, loss_points(arm)), (SLIDING, sliding_points(arm))):
        found += [Row(arm.name, one.seed, measure, int(one.length), one.scaling, one.value) for one in points]
    found += [Row(arm.name, one.seed, LOSS_AT, int(one.length), LOCAL, one.value) for one in loss_control_points(arm)]
    for measure, name in ((ACCURACY, "accuracy"), (LOCAL, "control")):
        for one in retrieval_points(arm, measure=name):
            right, asked = one.worth
            found.append(Row(arm.name, one.seed, measure, int(one.length), one.scaling, one.value, right, asked))
    for run in arm.done:
        found += [Row(arm.name, run.seed, name, value=_number(run, *place)) for name, place in NUMBERS.items()]
    kept = [row for row in found if math.isfinite(row.value)]
    return list({(row.arm, row.seed, row.measure, row.length, row.scaling): row for row in kept}.values())


def _number(run: Run, where: str, *keys: str) -> float:
    return number(dig(run.info if where == "info" else run.evals.get(where), *keys))


def _check(sweep: Sweep, file: Path) -> None:
    """Refuses a directory that is not of this sweep file in its present state."""
    raw = json.loads(ordinary(sweep.directory / "sweep.json").read_text(encoding="utf-8"))
    if raw.get("text") != file.read_text(encoding="utf-8"):
        raise UserError(f"{sweep.directory}: was made from another {file.name} than {file}")
    if raw.get("overrides"):
        raise UserError(f"{sweep.directory}: was run with {sorted(raw['overrides'])}, not as {file} says")


def _sweep(sweep: Sweep, arms: list[Arm]) -> dict[str, Any]:
    runs = [run for arm in arms for run in arm.runs]
    left = sorted(f"{run.arm}/seed{run.seed}: {run.status}" for run in runs if run.status != "done")
    looks = max(len(one.looked) + 1 for one in sweep.studies)
    return {"runs": len(runs), "not_done": left, "looks": looks, "cpu_hours": round(_hours(runs), 3)}


def _hours(runs: Iterable[Run]) -> float:
    """Returns hours of one core: training, compilation and evaluation of runs that had one thread each."""
    seconds = 0.0
    for run in runs:
        spent = [
            number(dig(run.info, "wall_time", "total")),
            *(number(one.get("seconds")) for one in run.evals.values()),
        ]
        seconds += sum(one for one in spent if math.isfinite(one))
    return seconds / 3600


def _made(runs: list[Run]) -> dict[str, Any]:
    """Returns when, from which source and with which versions the runs were made."""
    infos = [run.info for run in runs if run.info]
    days = sorted({str(info.get("started", ""))[:10] for info in infos} - {""})
    commits = sorted({str(info.get("git_commit") or "") for info in infos} - {""})
    versions = {key: value for info in infos for key, value in (info.get("versions") or {}).items()}
    day = days[-1] if days else datetime.date.today().isoformat()
    return {"date": day, "commits": [one[:12] for one in commits], "versions": dict(sorted(versions.items()))}


def main(argv: list[str]) -> None:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("name", metavar="NAME", help="the study")
    parser.add_argument("--from", dest="directory", required=True, metavar="DIR", help="holds its sweep directories")
    given = parser.parse_args(argv)
    results = tidy(declared.study(given.name), Path(given.directory))
    for path in save(results, given.name):
        print(path)


if __name__ == "__main__":
    cli.main(main)
