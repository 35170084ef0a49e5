"""Intervals and differences: over seeds Student's t and the bootstrap, Wilson and Newcombe for shares, Holm for many.

Why not the bootstrap alone: a mean of resampled seeds never leaves the range of the seeds, which for n seeds holds the
true mean with probability 1 - 2**(1 - n) at most where differences are symmetric: 75% for 3, 94% for 5. Measured
coverages are in docs/log.md.

Distributions are scipy.special's, which scipy.stats calls: that one takes a third of a second to load.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, special

CONFIDENCE = 0.95
POWER = 0.8  # with which the smallest difference a design could have seen is seen
BOOTSTRAP_FROM = 6  # seeds; the resampled means of fewer cannot hold the true one 95 times in 100
RESAMPLES = 4999
_Z = float(special.ndtri(0.5 + CONFIDENCE / 2))


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. `over` says what varies in it: "seeds", "tokens", "examples", or "" for no interval."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    count: int = 1  # seeds
    over: str = ""
    examples: int = 0  # of a share: how many were tried

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """Arm minus baseline, paired by seed. `low`, `high` and `p` are nan with fewer than two seeds in common.

    Attributes:
        deviation: of the differences between seeds (n - 1); nan with fewer than two.
        bootstrap: the bootstrap's interval, which `low` and `high` hold; nan with fewer than BOOTSTRAP_FROM seeds.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: tuple[int, ...]
    deviation: float = math.nan
    bootstrap: tuple[float, float] = (math.nan, math.nan)

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2

    @property
    def resolved(self) -> bool:
        """True where the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    def smallest_seen(self, comparisons: int = 1) -> float:
        """Returns the smallest true difference that these seeds show with probability POWER, at this spread.

        Args:
            comparisons: how many Holm's correction is over; the first of them must pass 5% / comparisons.
        """
        number = len(self.seeds)
        return math.nan if number < 2 else self.deviation * _seen(number, (1 - CONFIDENCE) / max(1, comparisons))


@functools.cache
def _seen(number: int, level: float) -> float:
    """Returns the true mean, in deviations, at which a two-sided t-test of `number` values has power POWER."""
    critical = -special.stdtrit(number - 1, level / 2)

    def power(shift: float) -> float:
        # Over the spread that the sample happens to have: scipy's noncentral t is inexact for one degree of freedom.
        quantiles = (np.arange(2000) + 0.5) / 2000
        spread = np.sqrt(2 * special.gammaincinv((number - 1) / 2, quantiles) / (number - 1))
        return float(np.mean(special.ndtr(shift - critical * spread) + special.ndtr(-critical * spread - shift)))

    highest = 4 * critical + 10
    return float(optimize.brentq(lambda shift: power(shift) - POWER, 0, highest)) / math.sqrt(number)


NOTHING = Estimate(math.nan, count=0)


def over_seeds(values: Iterable[float]) -> Estimate:
    """Returns the mean of one value a seed with its 95% t-interval (n - 1 degrees of freedom); one seed has none."""
    array = np.asarray([value for value in values if math.isfinite(value)], dtype=float)
    if array.size == 0:
        return NOTHING
    if array.size == 1:
        return Estimate(float(array[0]))
    half = _half_width(array)
    mean = _mean(array)
    return Estimate(mean, mean - half, mean + half, array.size, "seeds")


def _half_width(array: np.ndarray) -> float:
    return float(special.stdtrit(array.size - 1, 0.5 + CONFIDENCE / 2)) * _standard_error(array)


def _mean(array: np.ndarray) -> float:
    with np.errstate(over="ignore"):  # a loss can be near the largest float; what overflows shows as a dash
        return float(array.mean())


def _standard_error(array: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # as in _mean
        return float(array.std(ddof=1)) / math.sqrt(array.size)


def paired(arm: Mapping[int, float], baseline: Mapping[int, float]) -> Difference:
    """Returns arm - baseline over the seeds both have, with its 95% interval and the paired t-test's p.

    The interval is Student's t; from BOOTSTRAP_FROM seeds on, the wider at each end of that and of the bootstrap's.

    Args:
        arm, baseline: a value for each seed.
    """
    seeds = tuple(
        seed for seed in sorted(arm) if seed in baseline and math.isfinite(arm[seed]) and math.isfinite(baseline[seed])
    )
    differences = np.asarray([arm[seed] - baseline[seed] for seed in seeds], dtype=float)
    if differences.size == 0:
        return Difference(math.nan, math.nan, math.nan, math.nan, seeds)
    mean = _mean(differences)
    if differences.size == 1:
        return Difference(mean, math.nan, math.nan, math.nan, seeds)
    half, error = _half_width(differences), _standard_error(differences)
    p = float(2 * special.stdtr(differences.size - 1, -abs(mean) / error)) if error > 0 else float(mean == 0)
    resampled = bootstrap(differences)
    low, high = np.nanmin([mean - half, resampled[0]]), np.nanmax([mean + half, resampled[1]])
    return Difference(mean, float(low), float(high), p, seeds, error * math.sqrt(differences.size), resampled)


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Returns the expanded percentile interval of a mean (Hesterberg 2015, doi 10.1080/00031305.2015.1089789, 4.3).

    The percentile interval is too narrow for few values: it takes normal quantiles for Student's, and the resampled
    spread is less by sqrt(1 - 1/n). Taking percentiles further out makes up for both. nan for fewer than
    BOOTSTRAP_FROM values.
    """
    number = values.size
    if number < BOOTSTRAP_FROM or not np.isfinite(_standard_error(values)):
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    tail = expanded_tail(number)
    from scipy import stats  # slow to load, and few reports have so many seeds

    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, confidence_level=1 - 2 * tail, method="percentile",
        vectorized=True, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def expanded_tail(number: int) -> float:
    """Returns the share of resampled means of `number` values left out at each end; see `bootstrap`."""
    return float(special.ndtr(math.sqrt(number / (number - 1)) * special.stdtrit(number - 1, 0.5 - CONFIDENCE / 2)))


def paired_shares(arm: Mapping[int, tuple[float, float]], baseline: Mapping[int, tuple[float, float]]) -> Difference:
    """Returns the paired difference of shares (correct, examples) by seed, in shares of 1.

    Seeds that all solve a task have no spread, and a t-interval would then promise a certainty that a finite number of
    examples cannot give. So the interval is the wider, at each end, of the t-interval over seeds and of Newcombe's
    hybrid score interval over all examples (Newcombe 1998, method 10), and p the larger of both kinds of test.
    """
    seeds = [seed for seed in sorted(arm) if seed in baseline and arm[seed][1] > 0 and baseline[seed][1] > 0]
    difference = paired(
        {seed: arm[seed][0] / arm[seed][1] for seed in seeds},
        {seed: baseline[seed][0] / baseline[seed][1] for seed in seeds},
    )
    if len(seeds) < 2:
        return difference
    mine = [sum(arm[seed][part] for seed in seeds) for part in (0, 1)]
    other = [sum(baseline[seed][part] for seed in seeds) for part in (0, 1)]
    low, high = newcombe(mine, other)
    p = max(difference.p, _two_shares(mine, other))
    return replace(difference, low=min(difference.low, low), high=max(difference.high, high), p=p)


def _two_shares(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the p-value of the two-sample z-test of equal shares."""
    share = (first[0] + second[0]) / (first[1] + second[1])
    error = math.sqrt(share * (1 - share) * (1 / first[1] + 1 / second[1]))
    return float(2 * special.ndtr(-abs(first[0] / first[1] - second[0] / second[1]) / error)) if error > 0 else 1.0


def newcombe(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of first share - second share, each given as (correct, examples)."""
    one, other = wilson(*first), wilson(*second)
    gap = one.mean - other.mean
    low = gap - math.hypot(one.mean - one.low, other.high - other.mean)
    high = gap + math.hypot(one.high - one.mean, other.mean - other.low)
    return low, high


def wilson(correct: float, examples: float) -> Estimate:
    """Returns the share correct / examples with Wilson's 95% interval; NOTHING for an impossible count."""
    if not (math.isfinite(correct) and math.isfinite(examples)) or examples < 1 or not 0 <= correct <= examples:
        return NOTHING
    share, squared = correct / examples, _Z * _Z / examples  # in closed form: scipy's is slow for a thousand cells
    middle = (share + squared / 2) / (1 + squared)
    half = math.sqrt(share * (1 - share) * squared + squared * squared / 4) / (1 + squared)
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == examples else middle + half
    return Estimate(share, low, high, 1, "examples", round(examples))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns Holm's step-down adjusted p-values; nan stays nan and is not counted."""
    order = sorted((p, index) for index, p in enumerate(p_values) if math.isfinite(p))
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[index] = largest
    return adjusted
