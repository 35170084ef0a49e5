"""Tidy frames: every logged line and every measured number, one per row, for charts and notebooks."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from configs.evaluations import EVALUATIONS
from report.reading import target
from report.reading.directories import Arm, Run, Study, Sweep, dig, items, number, text
from report.reading.measures import bounds, loss_control_points, loss_points, retrieval_points, sliding_points
from report.reading.settings import config_of, settings

_RESULTS = ["study", "arm", "seed", "measure", "unit", "length", "multiple", "scaling", "pairs", "depth", "position"]
_RESULTS += ["value", "low", "high", "correct", "examples", "independent"]


def metrics(sweep: Sweep) -> pd.DataFrame:
    """Returns metrics.jsonl of every run: columns study, arm, seed, then each logged number."""
    rows: list[dict[str, Any]] = []
    for study, arm, run in _runs(sweep):
        for line in run.metrics:
            values = {key: value for key, value in line.items() if isinstance(value, (int, float))}
            rows.append({"study": study.name, "arm": arm.name, "seed": run.seed, **values})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["study", "arm", "seed", "step"])


def results(sweep: Sweep) -> pd.DataFrame:
    """Returns every number measured by evaluations of finished runs, with its interval and counts if available."""
    rows: list[dict[str, Any]] = []
    for study, arm, run in _runs(sweep):
        if run.status == "done":
            rows += [{"study": study.name, "arm": arm.name, "seed": run.seed, **row} for row in _single(run)]
            rows += [{"study": study.name, "arm": arm.name, "seed": run.seed, **row} for row in _positions(run)]
            rows += [{"study": study.name, "arm": arm.name, "seed": run.seed, **row} for row in _target(study, run)]
    for study in sweep.studies:
        for arm in study.arms:
            rows += [{"study": study.name, "arm": arm.name, **row} for row in _points(arm)]
    return pd.DataFrame(rows, columns=_RESULTS)


_OF_RUN: dict[str, tuple[str, ...]] = {
    "step": ("step",),
    "tokens": ("tokens",),
    "flops": ("flops",),
    "parameters": ("parameters", "total"),
    "flops_per_token": ("flops_per_token", "value"),
    "kv_bytes_per_token": ("kv_bytes_per_token",),
    "train_seconds": ("wall_time", "train"),
    "compile_seconds": ("wall_time", "compile"),
    "eval_seconds": ("wall_time", "eval"),
}


def runs(sweep: Sweep) -> pd.DataFrame:
    """Returns one row per run: its state, sizes and times, and every config field in which its study's arms differ."""
    differing = {study.name: [field for field, _ in settings(study).differing] for study in sweep.studies}
    rows: list[dict[str, Any]] = []
    for study, arm, run in _runs(sweep):
        row: dict[str, Any] = {"study": study.name, "arm": arm.name, "seed": run.seed, "status": run.status}
        row |= {name: text(run.info.get(name)) for name in ("error", "attention_kernel", "dtype", "git_commit")}
        row |= {name: number(dig(run.info, *keys)) for name, keys in _OF_RUN.items()}
        config = run.config or config_of(arm)
        rows.append(row | {field: _plain(dig(config, *field.split("."))) for field in differing[study.name]})
    columns = ["study", "arm", "seed", "status", "error", "attention_kernel", "dtype", "git_commit", *_OF_RUN]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else json.dumps(value)


def _runs(sweep: Sweep) -> Iterator[tuple[Study, Arm, Run]]:
    for study in sweep.studies:
        for arm in study.arms:
            for run in arm.runs:
                yield study, arm, run


def _single(run: Run) -> Iterator[dict[str, Any]]:
    for name, evaluation in EVALUATIONS.items():
        result = run.evals.get(name)
        for measure in evaluation.measures:
            value = number(dig(result, *measure.keys))
            if math.isfinite(value):
                low, high = bounds(dig(result, *measure.interval)) if measure.interval else (math.nan, math.nan)
                yield {"measure": measure.name, "unit": measure.unit, "value": value, "low": low, "high": high}


def _target(study: Study, run: Run) -> Iterator[dict[str, Any]]:
    """Yields steps and tokens to the target loss; infinity for a run that did not reach it."""
    result = target.of_run(run, study.target) if math.isfinite(study.target) else None
    if result is not None:
        yield {
            "measure": "steps_to_target",
            "unit": "steps",
            "value": result.steps,
            "low": _reached(result, result.until),
        }
        tokens = number(run.info.get("tokens"))
        yield {"measure": "tokens_to_target", "unit": "tokens", "value": result.tokens, "low": _reached(result, tokens)}


def _reached(result: target.Reached, until: float) -> float:
    return until if result.censored else math.nan


def _positions(run: Run) -> Iterator[dict[str, Any]]:
    for position, value in positions(run):
        yield {"measure": "loss_by_position", "unit": "nats/token", "position": position, "value": value}


def positions(run: Run) -> list[tuple[float, float]]:
    """Returns (middle of the bin, loss) at the training length for each finite loss; the row's first token is 1."""
    return positions_of(dig(run.evals.get("loss"), "by_position"))


def positions_of(raw: Any) -> list[tuple[float, float]]:
    """Returns (middle of the bin, loss) of a curve of losses by position."""
    columns = [[number(value) for value in items(raw, key)] for key in ("start", "end", "loss")]
    collected = [((start + 1 + end) / 2, loss) for start, end, loss in zip(*columns, strict=False)]
    return [(middle, loss) for middle, loss in collected if math.isfinite(middle) and math.isfinite(loss)]


def _points(arm: Arm) -> Iterator[dict[str, Any]]:
    groups = [
        ("loss_by_length", "nats/token", loss_points(arm)),
        ("sliding_loss_by_length", "nats/token", sliding_points(arm)),
        ("retrieval_by_length", "share", retrieval_points(arm, every=True)),
        ("retrieval_control_by_length", "share", retrieval_points(arm, measure="control", every=True)),
        ("loss_control_by_length", "nats/token", loss_control_points(arm)),
        ("exact_match_by_length", "share", retrieval_points(arm, measure="exact_match", every=True)),
        ("answers_found_by_length", "share", retrieval_points(arm, measure="answers_found", every=True)),
        ("retrieval_by_depth", "share", retrieval_points(arm, cells=True, every=True)),
    ]
    names = ("seed", "length", "multiple", "scaling", "pairs", "depth", "value", "low", "high", "correct", "examples")
    for measure, unit, points in groups:
        for point in points:
            yield {
                "measure": measure,
                "unit": unit,
                **{name: getattr(point, name) for name in names},
                "independent": point.independent,
            }
