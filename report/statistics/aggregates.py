"""One number over tasks and seeds: the interquartile mean, and the probability of improvement.

Both as defined by Agarwal et al. (2021, arXiv 2108.13264; their library is rliable). A task is one condition that every
arm was evaluated in: a retrieval task at one length with one number of pairs, with the arm's own scaling; its score is
the share of correct answers. A condition that does not measure distance in some run is left out and listed. Their
bootstrap draws the runs of each task separately; here one model answers all tasks of a seed, so whole seeds are drawn.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from report.claims.comparable import apart, reference_arm
from report.page.formats import counted
from report.reading.directories import Arm, Study, dig
from report.reading.measures import TRAINED, Point, names, retrieval_points
from report.statistics.intervals import BOOTSTRAP_FROM, RESAMPLES, expanded_tail


@dataclass(frozen=True)
class Over:
    """One arm over all tasks and seeds.

    Attributes:
        iqm: the interquartile mean of its scores, with its interval; nan with too few seeds for one.
        improvement: probability that a run of it beats one of the baseline on a random task; None for the baseline.
    """

    arm: str
    seeds: int
    iqm: float
    interval: tuple[float, float]
    improvement: float | None = None
    improvement_interval: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class Table:
    """The arms of a study over the tasks they share; `local`: the excluded ones, which do not measure distance."""

    tasks: tuple[str, ...]
    baseline: str
    arms: tuple[Over, ...]
    local: tuple[str, ...] = ()


def iqm(scores: np.ndarray) -> float:
    """Returns the mean of the middle half of all scores [seeds, tasks]."""
    from scipy import stats  # slow to load, and most reports have one task

    return float(stats.trim_mean(scores, 0.25, axis=None))


def improvement(own: np.ndarray, other: np.ndarray) -> float:
    """Returns P(mine > other), ties counting half, the mean over tasks of scores [seeds, tasks]: Mann-Whitney's U."""
    from scipy import stats

    pairs = own.shape[0] * other.shape[0]
    return float(np.mean(stats.mannwhitneyu(own, other, axis=0).statistic) / pairs)


def iqm_interval(scores: np.ndarray) -> tuple[float, float]:
    """Returns the 95% interval of `iqm` from resampled seeds of scores [seeds, tasks]; nan for too few seeds."""
    from scipy import stats

    number = len(scores)
    drawn = np.random.default_rng(0).integers(0, number, (RESAMPLES // 2, number))
    return _ends(np.asarray(stats.trim_mean(scores[drawn].reshape(len(drawn), -1), 0.25, axis=1)), number)


def improvement_interval(own: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Returns the 95% interval of `improvement` from resampled seeds of both arms; nan for too few seeds."""
    gaps = own[:, None, :] - other[None, :, :]
    wins = np.mean((gaps > 0) + 0.5 * (gaps == 0), axis=2)  # for each pair of runs, over tasks
    rng = np.random.default_rng(0)
    counts = [rng.multinomial(number, np.full(number, 1 / number), RESAMPLES // 2) for number in wins.shape]
    result = np.einsum("rm,mo,ro->r", counts[0], wins, counts[1]) / wins.size
    return _ends(result, min(wins.shape))


def _ends(result: np.ndarray, number: int) -> tuple[float, float]:
    """Returns percentiles of resampled values, as far out as `intervals.bootstrap` takes them for this many seeds."""
    if number < BOOTSTRAP_FROM:
        return math.nan, math.nan
    tail = expanded_tail(number)
    low, high = np.quantile(result, [tail, 1 - tail])
    return float(low), float(high)


def table(study: Study) -> Table | None:
    """Returns the arms over the tasks that all their finished seeds have; None for fewer than two of either."""
    baseline = reference_arm(study)
    left_out = apart(study, "retrieval")
    by_arm = {arm.name: _scores(arm) for arm in study.arms if arm.done and arm.name not in left_out}
    by_arm = {name: scores for name, scores in by_arm.items() if scores}
    if baseline is None or len(by_arm) < 2 or baseline.name not in by_arm:
        return None
    every = [set(scores) for seeds in by_arm.values() for scores in seeds.values()]
    shared = sorted(set.intersection(*every), key=lambda task: (task[0], task[1:]))
    local = {task for arm in study.arms if arm.name in by_arm for task in _local(arm)}
    tasks = [task for task in shared if task not in local]
    if len(tasks) < 2:
        return None
    arrays = {name: _array(seeds, tasks) for name, seeds in by_arm.items()}
    rows = [_over(name, own, None if name == baseline.name else arrays[baseline.name]) for name, own in arrays.items()]
    several = len({task[2] for task in shared}) > 1
    labels = {task: _label(task, several) for task in shared}
    left = tuple(labels[task] for task in shared if task in local)
    return Table(tuple(labels[task] for task in tasks), baseline.name, tuple(rows), left)


def _over(name: str, own: np.ndarray, other: np.ndarray | None) -> Over:
    one = Over(name, len(own), iqm(own), iqm_interval(own))
    if other is None:
        return one
    return replace(
        one, improvement=improvement(own, other), improvement_interval=improvement_interval(own, other)
    )  # fmt: skip


Task = tuple[str, float, float]  # name, length in tokens, pairs or needles per row


def _scores(arm: Arm) -> dict[int, dict[Task, float]]:
    """Returns {seed: {task: share}} of an arm's finished runs."""
    results: dict[int, dict[Task, float]] = {}
    for task, point in _points(arm):
        results.setdefault(point.seed, {})[task] = point.value
    return results


def _local(arm: Arm) -> set[Task]:
    return {task for task, point in _points(arm) if point.local}


def _points(arm: Arm) -> Iterator[tuple[Task, Point]]:
    name = ", ".join(names(arm, lambda run: dig(run.evals.get("retrieval"), "task")))
    for point in retrieval_points(arm, every=True):
        if point.scaling == TRAINED:
            yield (name, point.length, point.pairs if math.isfinite(point.pairs) else 0.0), point


def _array(seeds: dict[int, dict[Task, float]], tasks: Sequence[Task]) -> np.ndarray:
    return np.array([[seeds[seed][task] for task in tasks] for seed in sorted(seeds)])


def _label(task: Task, several: bool) -> str:
    name, length, pairs = task
    return f"{name} at {counted(length)}" + (f" with {counted(pairs)}" if several else "")
