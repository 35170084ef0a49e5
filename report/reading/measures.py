"""What the arms measured: values by seed and estimates over seeds, from the evaluations of finished runs."""

import functools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from configs.rules import positions, tasks
from report.page import formats
from report.reading.directories import Arm, Run, Study, dig, items, mapping, number, objects, text
from report.statistics import shares
from report.statistics.intervals import Estimate, over_seeds, wilson
from report.statistics.text_noise import Pieces

TRAINED = "trained"  # the evaluations' name for a run's own RoPE scaling, unchanged
SCALINGS = (TRAINED, *positions.SCALINGS)
NOUNS = {**dict.fromkeys(tasks.FILLED, "pairs"), "variable_tracking": "hops"}
NOUNS |= {"selective_copy": "tokens", "induction_repeat": "tokens"}
FEW = tasks.FEW  # independent examples; cells with fewer cannot be ranked
Number = Callable[[Run], float]


def from_eval(name: str, *keys: str) -> Number:
    """Returns a function that reads a number from a run's evaluation."""
    return lambda run: number(dig(run.evals.get(name), *keys))


def from_info(*keys: str) -> Number:
    """Returns a function that reads a number from a run's run.json."""
    return lambda run: number(dig(run.info, *keys))


def by_seed(arm: Arm, measure: Number) -> dict[int, float]:
    """Returns {seed: value} of the arm's finished runs that have a finite one."""
    results = {run.seed: measure(run) for run in arm.done}
    return {seed: value for seed, value in results.items() if math.isfinite(value)}


def with_noise(runs: Iterable[Run], value: Number, interval: Callable[[Run], Any]) -> Estimate:
    """Returns the mean over runs with its t-interval; for one run the interval of its evaluation, if any."""
    results = [(run, value(run)) for run in runs]
    results = [(run, one) for run, one in results if math.isfinite(one)]
    estimate = over_seeds(one for _, one in results)
    if estimate.count != 1:
        return estimate
    low, high = bounds(interval(results[0][0]))
    if not low <= estimate.mean <= high:
        return estimate
    return Estimate(estimate.mean, low, high, 1, "tokens")


def bounds(raw: Any) -> tuple[float, float]:
    """Returns the two ends of an interval; nan without one."""
    if not isinstance(raw, list) or len(raw) != 2:
        return math.nan, math.nan
    return number(raw[0]), number(raw[1])


def loss(arm: Arm) -> Estimate:
    """Returns the validation loss, nats per token."""
    return with_noise(arm.done, from_eval("loss", "loss"), lambda run: dig(run.evals.get("loss"), "loss_interval"))


def bits_per_byte(arm: Arm) -> Estimate:
    """Returns the validation loss in bits per byte of text."""
    interval = "bits_per_byte_interval"
    return with_noise(arm.done, from_eval("loss", "bits_per_byte"), lambda run: dig(run.evals.get("loss"), interval))


def loss_sources(study: Study) -> list[str]:
    """Returns the names of the mixture's texts that have separate losses, in order."""
    named = (text(raw.get("name")) for arm in study.arms for run in arm.done for raw in _by_source(run))
    return list(dict.fromkeys(name for name in named if name))


def source_loss(arm: Arm, name: str) -> Estimate:
    """Returns the validation loss on one text of a mixture, nats per token."""

    def entry(run: Run) -> dict[str, Any]:
        return next((raw for raw in _by_source(run) if text(raw.get("name")) == name), {})

    return with_noise(arm.done, lambda run: number(entry(run).get("loss")), lambda run: entry(run).get("interval"))


def _by_source(run: Run) -> list[dict[str, Any]]:
    return list(objects(run.evals.get("loss"), "by_source"))


def train_memory(run: Run) -> float:
    """Returns bytes: the train step's peak as compiled, else parameters, gradients and optimizer by formula.

    A device's own peak is not used: it covers everything its process did, including evaluations.
    """
    raw = run.evals.get("memory")
    peak = number(dig(raw, "compiled", "train_step", "peak"))
    if math.isfinite(peak):
        return peak
    return sum(number(dig(raw, "formula", part)) for part in ("parameters", "gradients", "optimizer"))


def memory_source(arm: Arm) -> str:
    """Returns the source of `train_memory`: "compiled" or "formula" ("" for none)."""
    raws = [run.evals["memory"] for run in arm.done if "memory" in run.evals]
    compiled = any(math.isfinite(number(dig(raw, "compiled", "train_step", "peak"))) for raw in raws)
    return "compiled" if compiled else "formula" if raws else ""


def answers(study: Study) -> bool:
    """True if the loss is that of a task's answers, for runs that do not train on text."""
    results = {text(dig(run.evals.get("loss"), "source")) for arm in study.arms for run in arm.done}
    return bool(results - {"", "text"})


def loss_unit(study: Study) -> str:
    """Returns the unit of the study's losses."""
    return "nats/answer" if answers(study) else "nats/token"


def spread(arm: Arm, measure: Number, quartiles: Callable[[Run], Any]) -> tuple[float, float]:
    """Returns the minimum and maximum over seeds; for one seed the quartiles over its repeats."""
    result = list(by_seed(arm, measure).values())
    if len(result) == 1:
        return bounds(next(quartiles(run) for run in arm.done if math.isfinite(measure(run))))
    return (min(result), max(result)) if result else (math.nan, math.nan)


def median(arm: Arm, measure: Number) -> float:
    """Returns the median over seeds; nan if there is none."""
    result = list(by_seed(arm, measure).values())
    return statistics.median(result) if result else math.nan


def names(arm: Arm, value: Callable[[Run], Any]) -> list[str]:
    """Returns the distinct texts of the arm's finished runs, in order of seed."""
    return list(dict.fromkeys(result for run in arm.done if (result := text(value(run)))))


@dataclass(frozen=True)
class Point:
    """One evaluation of a run at one length under one scaling, and for retrieval at one depth."""

    arm: str
    seed: int
    length: float
    multiple: float
    scaling: str
    value: float  # nats per token, or a share
    low: float
    high: float
    correct: float = math.nan
    examples: float = math.nan
    depth: float = math.nan
    independent: float = math.nan  # number of independent examples they amount to: answers of one row are correlated
    pairs: float = math.nan  # pairs, needles, hops or tokens per row
    merged: tuple[float, ...] = ()  # other depths that this cell covers
    stretch: float = math.nan  # factor by which the slowest rotary pair is slowed; nan: unknown
    local: bool = False  # beyond the training length, and no control shows that it measures distance
    text: Pieces | None = field(default=None, compare=False)  # the loss by piece of text; None: unknown

    @property
    def worth(self) -> tuple[float, float]:
        """(correct, examples), counting only independent ones."""
        if not self.independent < self.examples:
            return self.correct, self.examples
        return self.value * self.independent, self.independent

    @property
    def key(self) -> tuple[float, str]:
        """(multiple, scaling): points with one key are seeds of one condition."""
        return self.multiple, self.scaling


def _once(points_of: Callable[..., list[Point]]) -> Callable[..., list[Point]]:
    """Caches with each arm what was read from it: tables and charts need the same points many times."""

    @functools.wraps(points_of)
    def kept(arm: Arm, *args: Any, **options: Any) -> list[Point]:
        result = vars(arm).setdefault("_points", {})
        key = (points_of.__name__, args, tuple(sorted(options.items())))
        if key not in result:
            result[key] = points_of(arm, *args, **options)
        return list(result[key])

    return kept


def _losses(arm: Arm, part: str = "") -> list[Point]:
    """Returns the losses by length of the arm's finished runs, or those of a `part` of each length."""
    points = []
    for run in arm.done:
        for raw in objects(run.evals.get("loss"), "by_length"):
            result = mapping(raw.get(part)) if part else raw
            low, high = bounds(result.get("interval"))
            point = _point(arm, run, raw, number(result.get("loss")), low, high)
            points.append(replace(point, text=_pieces(result.get("text"))))
    return [point for point in points if math.isfinite(point.value) and point.multiple > 0]


@_once
def loss_points(arm: Arm) -> list[Point]:
    """Returns the losses by length of the arm's finished runs."""
    return _losses(arm)


def sliding_points(arm: Arm) -> list[Point]:
    """Returns the losses by length in sliding windows of the arm's finished runs, if measured."""
    return _losses(arm, "sliding")


def loss_control_points(arm: Arm) -> list[Point]:
    """Returns the losses beyond the training length with attention windows of the training length."""
    return _losses(arm, "control")


def effective_lengths(arm: Arm) -> tuple[list[tuple[float, bool]], str]:
    """Returns ([effective length, whether a longer one failed] of each finished run, the threshold).

    For teacher-forced accuracy with the arm's own scaling.
    """
    result, thresholds = [], []
    for run in arm.done:
        evaluated = run.evals.get("retrieval")
        one = mapping(dig(evaluated, "effective_length", "accuracy", TRAINED))
        length = number(one.get("length"))
        if math.isfinite(length):
            result.append((length, one.get("bounded") is True))
            thresholds.append(text(dig(evaluated, "settings", "retrieval", "threshold")))
    return sorted(result), thresholds[0] if len(set(thresholds)) == 1 else ""


@_once
def retrieval_points(arm: Arm, cells: bool = False, *, measure: str = "accuracy", every: bool = False) -> list[Point]:
    """Returns shares by length, or by length and depth (`cells`), of the arm's finished runs.

    Args:
        measure: accuracy (teacher-forced), exact_match or answers_found (both generated), or control (accuracy of the
            local baseline, beyond the training length).
        every: for every evaluated number of pairs; otherwise the run's own (its file's `pairs`).
    """
    points = []
    for run in arm.done:
        evaluated = run.evals.get("retrieval")
        headline = number(dig(evaluated, "pairs"))
        for raw in objects(evaluated, "cells" if cells else "by_length"):
            pairs = number(raw.get("pairs"))
            if not every and math.isfinite(headline) and math.isfinite(pairs) and pairs != headline:
                continue
            counts = raw if measure == "accuracy" else mapping(raw.get(measure))
            points.append(_share(arm, run, raw, counts))
    kept = [point for point in points if point.multiple > 0 and (not cells or math.isfinite(point.depth))]
    return [point for point in kept if math.isfinite(point.value)]


def skipped(arm: Arm) -> dict[str, str]:
    """Returns {reason: the conditions that evaluations skipped for it}, such as lengths beyond a learned table."""
    results: dict[str, list[tuple[str, str, str]]] = {}
    for run in arm.done:
        for measure in ("loss", "retrieval"):
            for raw in objects(run.evals.get(measure), "by_length"):
                if reason := text(raw.get("reason")):
                    condition = (measure, text(raw.get("length")), text(raw.get("scaling")))
                    results.setdefault(reason, []).append(condition)
    return {reason: _conditions(list(dict.fromkeys(conditions))) for reason, conditions in results.items()}


def _conditions(conditions: list[tuple[str, str, str]]) -> str:
    """Returns the conditions in words, with the lengths of one measure and scaling together."""
    lengths: dict[tuple[str, str], list[str]] = {}
    for measure, length, scaling in conditions:
        lengths.setdefault((measure, scaling), []).append(length)
    scalings: dict[tuple[str, str], list[str]] = {}
    for (measure, scaling), tokens in lengths.items():
        scalings.setdefault((measure, ", ".join(tokens)), []).append(scaling)
    parts = [
        f"{measure} at {tokens} tokens" + ("" if kinds == [TRAINED] else f" ({', '.join(kinds)})")
        for (measure, tokens), kinds in scalings.items()
    ]
    return "; ".join(parts)


def _point(arm: Arm, run: Run, raw: dict[str, Any], value: float, low: float, high: float) -> Point:
    length, multiple = number(raw.get("length")), number(raw.get("multiple"))
    scaling = text(raw.get("scaling")) or TRAINED
    counts = number(raw.get("correct")), number(raw.get("examples"))
    depth, stretch = number(raw.get("depth")), number(raw.get("stretch"))
    return Point(arm.name, run.seed, length, multiple, scaling, value, low, high, *counts, depth, stretch=stretch)


def _share(arm: Arm, run: Run, raw: dict[str, Any], counts: dict[str, Any]) -> Point:
    correct, examples = number(counts.get("correct")), number(counts.get("examples"))
    independent = number(counts.get("independent"))
    independent = min(independent, examples) if 0 < independent < math.inf else examples
    share = _clustered(correct, examples, independent)
    point = _point(arm, run, raw, share.mean, share.low, share.high)
    merged = tuple(number(depth) for depth in items(raw, "merged"))
    pairs = number(raw.get("pairs"))
    # Beyond the training length, conditions count only if a control shows that they measure distance.
    local = point.multiple > 1 and raw.get("measures_distance") is not True
    counted = replace(point, correct=correct, examples=examples, independent=independent, pairs=pairs)
    return replace(counted, merged=merged, local=local)


def _clustered(correct: float, examples: float, independent: float) -> Estimate:
    """Returns the share with Wilson's interval for the number of independent examples."""
    share = wilson(correct, examples)
    if not math.isfinite(share.mean) or not independent < examples:
        return share
    ends = wilson(independent * share.mean, independent)
    return replace(share, low=ends.low, high=ends.high) if math.isfinite(ends.mean) else share


def pooled(points: Iterable[Point]) -> Estimate:
    """Returns the mean over seeds of the share of correct answers; its interval includes seeds and rows.

    For one seed it is Wilson's over its rows, as far as they are independent. `examples` counts all answers.
    """
    points = list(points)
    by_run: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        by_run.setdefault(point.seed, []).append(point.worth)
    seeds = [(sum(right for right, _ in result), sum(worth for _, worth in result)) for result in by_run.values()]
    result = shares.over_seeds(seeds)
    return replace(result, examples=round(sum(point.examples for point in points))) if result.count else result


def pieces(run: Run) -> Pieces | None:
    """Returns a run's validation losses by piece of text, from eval/loss.json, or None."""
    return _pieces(dig(run.evals.get("loss"), "text"))


def _pieces(raw: Any) -> Pieces | None:
    loss, tokens = (np.array([number(one) for one in items(raw, key)]) for key in ("loss", "tokens"))
    if not loss.size or loss.size != tokens.size or not np.isfinite(loss.sum() + tokens.sum()) or not tokens.min() > 0:
        return None
    return Pieces(loss, tokens)


def mean_loss(points: Iterable[Point]) -> Estimate:
    """Returns the mean loss over seeds with its t-interval; for one seed with its interval over tokens."""
    points = list(points)
    estimate = over_seeds(point.value for point in points)
    if estimate.count == 1 and points[0].low <= estimate.mean <= points[0].high:
        return Estimate(estimate.mean, points[0].low, points[0].high, 1, "tokens")
    return estimate


def scaling_order(scaling: str) -> tuple[int, str]:
    """Returns a sort key: the run's own scaling first, then the known kinds, then others by name."""
    return (SCALINGS.index(scaling) if scaling in SCALINGS else len(SCALINGS)), scaling


def scaling_label(arms: Iterable[Arm], scaling: str) -> str:
    """Returns the label of a scaling; the run's own is named by its trained setting."""
    if scaling != TRAINED:
        return scaling
    kinds = {_own_scaling(arm) for arm in arms}
    return kinds.pop() if len(kinds) == 1 else "as trained"


def _own_scaling(arm: Arm) -> str:
    position = mapping(dig(arm.config or (arm.runs[0].config if arm.runs else {}), "model", "position"))
    if text(position.get("kind")) != "rope":
        return "as trained"
    kind = text(dig(position, "rope", "scaling", "kind"))
    return "raw RoPE" if kind == "none" else f"as trained ({kind})" if kind else "as trained"


def retrieval_lengths(study: Study) -> list[float]:
    """Returns the lengths at which retrieval was evaluated with some arm's own setting, increasing."""
    points = [point for arm in study.arms for point in retrieval_points(arm) if point.scaling == TRAINED]
    return sorted({point.length for point in points if math.isfinite(point.length)})


def counted(study: Study) -> str:
    """Returns a sentence on which answers retrieval counted, if the evaluations agree on it."""
    results = {text(dig(run.evals.get("retrieval"), "settings", "counted")) for arm in study.arms for run in arm.done}
    words = results - {""}
    return f" Counted: {words.pop()}." if len(words) == 1 else ""


def noun(study: Study) -> str:
    """Returns the noun for the items of the study's retrieval task: pairs, hops, tokens or needles."""
    result = {task(run) for arm in study.arms for run in arm.done} - {""}
    return NOUNS.get(next(iter(result)), "needles") if len(result) == 1 else "needles"


def has_scalings(study: Study) -> bool:
    """True if a run was evaluated with a scaling it was not trained with."""
    return any(point.scaling != TRAINED for arm in study.arms for point in loss_points(arm) + retrieval_points(arm))


def scored(run: Run) -> str:
    """Returns in words how many tokens the run's loss was measured on; empty where it was not."""
    tokens, split = number(dig(run.evals.get("loss"), "tokens")), text(dig(run.evals.get("loss"), "split"))
    part = f" of the {split} text" if split not in ("", "validation") else ""
    return f"{formats.counted(tokens)} tokens{part}" if math.isfinite(tokens) else ""


def task(run: Run) -> str:
    """Returns the retrieval task that the run was evaluated on; empty where it was on none."""
    return text(dig(run.evals.get("retrieval"), "task"))


LOADED = 1.5  # runnable processes per core; a measurement alone on the machine keeps this at 1 or below


def load_when_timed(run: Run, evaluation: str = "throughput") -> tuple[float, float]:
    """Returns (the machine's load, its cores) while an evaluation ran; nan if not recorded."""
    device = dig(run.evals.get(evaluation), "device")
    load = dig(device, "load")
    return number(load[0]) if isinstance(load, list) and load else math.nan, number(dig(device, "cores"))


def timed_under_load(arm: Arm, evaluation: str = "throughput") -> str:
    """Returns a note if an arm's speeds were measured while others used the machine; otherwise empty."""
    results = [load_when_timed(run, evaluation) for run in arm.done]
    busy = [(load, cores) for load, cores in results if load > LOADED * cores]
    if not busy:
        return ""
    load, cores = max(busy)
    return f"speeds measured under load ({load:.3g} on {cores:g} cores, {len(busy)} of {len(results)} runs)"
