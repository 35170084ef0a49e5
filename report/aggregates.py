"""One number over tasks and seeds: the interquartile mean, and the probability of improvement.

Both as Agarwal et al. define them (2021, arXiv 2108.13264; their library is rliable). A task is one condition that
every arm was asked in: a retrieval task at one length with one number of pairs, under the arm's own scaling; its score
is the share that is right. Their bootstrap draws the runs of each task by themselves; here one model answers all tasks
of a seed, so that whole seeds are drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from report.comparable import reference_arm
from report.formats import counted
from report.measures import TRAINED, names, retrieval_points
from report.reading import Arm, Study, dig
from report.statistics import BOOTSTRAP_FROM, CONFIDENCE, RESAMPLES


@dataclass(frozen=True)
class Over:
    """One arm over all tasks and seeds.

    Attributes:
        iqm: the interquartile mean of its scores, with its interval; nan where there are too few seeds for one.
        improvement: probability that a run of it beats one of the baseline on a task taken at random; None for itself.
    """

    arm: str
    seeds: int
    iqm: float
    interval: tuple[float, float]
    improvement: float | None = None
    improvement_interval: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class Table:
    """The arms of a study over the tasks they share."""

    tasks: tuple[str, ...]
    baseline: str
    arms: tuple[Over, ...]


def iqm(scores: np.ndarray) -> float:
    """Returns the mean of the middle half of all scores [seeds, tasks]."""
    return float(stats.trim_mean(scores, 0.25, axis=None))


def improvement(mine: np.ndarray, other: np.ndarray) -> float:
    """Returns P(mine > other), ties counting half, the mean over tasks of scores [seeds, tasks]: Mann-Whitney's U."""
    pairs = mine.shape[0] * other.shape[0]
    return float(np.mean(stats.mannwhitneyu(mine, other, axis=0).statistic) / pairs)


def interval(
    statistic: Callable[..., float], *samples: np.ndarray, resamples: int = RESAMPLES // 5
) -> tuple[float, float]:
    """Returns the 95% interval from resampled seeds of each sample [seeds, tasks]; nan for too few seeds.

    Percentiles are taken as far out as `statistics.bootstrap` does, for the fewest seeds of any sample.
    """
    number = min(len(sample) for sample in samples)
    if number < BOOTSTRAP_FROM:
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    found = [
        statistic(*(sample[rng.integers(0, len(sample), len(sample))] for sample in samples)) for _ in range(resamples)
    ]
    tail = stats.norm.cdf(math.sqrt(number / (number - 1)) * stats.t.ppf(0.5 - CONFIDENCE / 2, number - 1))
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def table(study: Study) -> Table | None:
    """Returns the arms over the tasks that all their finished seeds were asked; None for fewer than two of either."""
    baseline = reference_arm(study)
    by_arm = {arm.name: _scores(arm) for arm in study.arms if arm.done}
    by_arm = {name: scores for name, scores in by_arm.items() if scores}
    if baseline is None or len(by_arm) < 2 or baseline.name not in by_arm:
        return None
    every = [set(scores) for seeds in by_arm.values() for scores in seeds.values()]
    tasks = sorted(set.intersection(*every), key=lambda task: (task[0], task[1:]))
    if len(tasks) < 2:
        return None
    arrays = {name: _array(seeds, tasks) for name, seeds in by_arm.items()}
    rows = [
        _over(name, mine, None if name == baseline.name else arrays[baseline.name]) for name, mine in arrays.items()
    ]
    several = len({task[2] for task in tasks}) > 1
    labels = tuple(_label(task, several) for task in tasks)
    return Table(labels, baseline.name, tuple(rows))


def _over(name: str, mine: np.ndarray, other: np.ndarray | None) -> Over:
    one = Over(name, len(mine), iqm(mine), interval(iqm, mine))
    if other is None:
        return one
    ends = interval(improvement, mine, other, resamples=400)
    return Over(name, one.seeds, one.iqm, one.interval, improvement(mine, other), ends)


Task = tuple[str, float, float]  # name, length in tokens, pairs or needles a row


def _scores(arm: Arm) -> dict[int, dict[Task, float]]:
    """Returns {seed: {task: share}} of an arm's finished runs."""
    name = ", ".join(names(arm, lambda run: dig(run.evals.get("retrieval"), "task")))
    found: dict[int, dict[Task, float]] = {}
    for point in retrieval_points(arm, every=True):
        if point.scaling == TRAINED:
            pairs = point.pairs if math.isfinite(point.pairs) else 0.0
            found.setdefault(point.seed, {})[name, point.length, pairs] = point.value
    return found


def _array(seeds: dict[int, dict[Task, float]], tasks: Sequence[Task]) -> np.ndarray:
    return np.array([[seeds[seed][task] for task in tasks] for seed in sorted(seeds)])


def _label(task: Task, several: bool) -> str:
    name, length, pairs = task
    return f"{name} at {counted(length)}" + (f" with {counted(pairs)}" if several else "")
