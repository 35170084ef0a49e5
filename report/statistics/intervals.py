"""Intervals and differences over seeds: Student's t and the bootstrap, Wilson and Newcombe for shares, Holm for many.

`report/statistics/shares.py` has the intervals of shares over seeds, `pooling.py` deviations pooled over arms,
`text_noise.py` the effect of other text, `sequential.py` the levels of planned looks.

Why not the bootstrap alone: a mean of resampled seeds never leaves the range of the seeds, which for n seeds contains
the true mean with probability at most 1 - 2**(1 - n) if differences are symmetric: 75% for 3, 94% for 5. Measured
coverages are in docs/log.md.

Distributions are from scipy.special, which scipy.stats calls; scipy.stats takes a third of a second to load.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # a submodule loads at its first use

CONFIDENCE = 0.95
POWER = 0.8  # with which the smallest detectable difference is detected
BOOTSTRAP_FROM = 6  # seeds; the resampled means of fewer cannot contain the true one 95 times in 100
RESAMPLES = 4999
SMALLEST_P = 1e-12  # of a p-value found by search


@functools.cache
def _quantile(level: float) -> float:
    return float(scipy.special.ndtri(1 - level / 2))


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. `over` names its sources of variation.

    "seeds", "tokens" or "examples"; "few" for too few seeds to have an interval; "" for no interval.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    count: int = 1  # seeds
    over: str = ""
    examples: int = 0  # for a share: number of trials

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """Arm minus baseline, paired by seed. `low`, `high` and `p` are nan with fewer than two seeds in common.

    Attributes:
        deviation: of the differences between seeds, pooled over arms if `pooled` says so; nan with fewer than two.
        bootstrap: the bootstrap's interval, which `low` and `high` contain; nan with fewer than BOOTSTRAP_FROM seeds.
        freedom: degrees of freedom of `deviation`; nan: seeds - 1.
        pooled: number of arms over which the deviation is pooled; 0: it is these seeds' own.
        floor: number of arms whose pooled deviation is a minimum of this one (`Pooled.refused`); 0: there is none.
        text_error: standard error that other text would add; 0 if unknown or not counted.
        text_freedom: degrees of freedom of `text_error`.
        few: the seeds are too few for a meaningful interval.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: tuple[int, ...]
    deviation: float = math.nan
    bootstrap: tuple[float, float] = (math.nan, math.nan)
    freedom: float = math.nan
    pooled: int = 0
    floor: int = 0
    text_error: float = 0.0
    text_freedom: float = math.inf
    few: bool = False

    @property
    def half(self) -> float:
        """Half the interval's width; nan without one."""
        return (self.high - self.low) / 2

    @property
    def resolved(self) -> bool:
        """True if the interval excludes 0 and there are enough seeds for one."""
        return not self.few and (self.low > 0 or self.high < 0)

    @property
    def error(self) -> float:
        """The standard error of the mean, from seeds and, if known, text; nan with fewer than two seeds."""
        return self.spread(len(self.seeds)).error

    def spread(self, number: int) -> "Spread":
        """Returns the noise of the mean over `number` seeds with this deviation; nan with fewer than two."""
        if number < 2:
            return Spread(math.nan, math.nan)
        freedom = self.freedom
        if number != len(self.seeds) or not math.isfinite(freedom):
            freedom = (number - 1.0) * max(1, self.pooled - 1)
        return Spread(self.deviation / math.sqrt(number), freedom, self.text_error, self.text_freedom)

    def smallest_seen(self, comparisons: int = 1, level: float = 1 - CONFIDENCE) -> float:
        """Returns the smallest true difference that these seeds detect with probability POWER, at this spread.

        Args:
            comparisons: number that Holm's correction is over; the first must pass level / comparisons.
            level: of all of them together.
        """
        number = len(self.seeds)
        return math.nan if number < 2 else self.spread(number).seen(level / max(1, comparisons))

    def seeds_to_see(
        self, size: float, comparisons: int = 1, level: float = 1 - CONFIDENCE, most: int = 10_000
    ) -> int | None:
        """Returns how many seeds would detect a true difference of `size` with probability POWER, at this spread.

        Args:
            size: above 0.
            comparisons, level: as in `smallest_seen`.
            most: the largest number considered.

        Returns:
            None if even `most` seeds would not, for example because the text's own noise is larger.
        """
        if len(self.seeds) < 2 or not math.isfinite(self.deviation):
            return None

        def enough(number: int) -> bool:
            return self.spread(number).seen(level / max(1, comparisons)) <= size

        low, high = 1, 2
        while not enough(high):
            low, high = high, 2 * high
            if high > most:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


@dataclass(frozen=True)
class Spread:
    """The noise of a mean difference: the standard errors of seeds and of text, each with its degrees of freedom.

    Half an interval is sqrt(t_1^2 e_1^2 + t_2^2 e_2^2), with the standard errors e and each t the quantile of its own
    degrees of freedom: Banerjee's (Sankhya 22, 1960), which covers at least the nominal level for all true variances.
    Satterthwaite's (1946) single number of degrees does not: if the seeds' variance is small by chance, the text's many
    degrees dominate, and at the levels of Holm's correction that gave twice the allowed false claims.
    """

    seeds: float  # standard error, as `text`
    freedom: float
    text: float = 0.0
    text_freedom: float = math.inf

    @property
    def error(self) -> float:
        """The combined standard error."""
        return math.hypot(self.seeds, self.text)

    def half(self, level: float) -> float:
        """Returns half the interval's width at a two-sided level."""
        of_seeds = -float(scipy.special.stdtrit(self.freedom, level / 2)) * self.seeds
        return math.hypot(of_seeds, _student(self.text_freedom, level) * self.text) if self.text > 0 else of_seeds

    def p(self, distance: float) -> float:
        """Returns the level at which half the interval is `distance`, 0 or more: a two-sided p-value."""
        if not self.error > 0:
            return float(distance == 0)
        if not self.text > 0 or not math.isfinite(self.error):
            return float(2 * scipy.special.stdtr(self.freedom, -distance / self.error))
        low, high = math.log(SMALLEST_P), 0.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(math.exp(middle)) > distance else (low, middle)
        return math.exp(high)

    def seen(self, level: float) -> float:
        """Returns the smallest true difference that a two-sided test at `level` detects with probability POWER."""
        freedom = self.freedom
        if self.text > 0 and math.isfinite(self.error):
            # The degrees whose quantile is as far out: what the power of this test is like.
            critical, low, high = self.half(level) / self.error, *sorted((freedom, min(self.text_freedom, 1e6)))
            while high - low > 1e-3 * low:
                middle = math.sqrt(low * high)
                low, high = (middle, high) if _student(middle, level) > critical else (low, middle)
            freedom = round(low, 2)
        return self.error * _seen(freedom, level)


def _student(freedom: float, level: float) -> float:
    if math.isinf(freedom):
        return _quantile(level)
    return -float(scipy.special.stdtrit(freedom, level / 2))


@functools.cache
def _seen(freedom: float, level: float) -> float:
    """Returns the true mean, in standard errors, at which a two-sided t-test has power POWER."""
    critical = -float(scipy.special.stdtrit(freedom, level / 2))

    def power(shift: float) -> float:
        # Averaged over the sample's spread: scipy's noncentral t is inexact for one degree of freedom.
        quantiles = (np.arange(2000) + 0.5) / 2000
        spread = np.sqrt(2 * scipy.special.gammaincinv(freedom / 2, quantiles) / freedom)
        outside = (shift - critical * spread, -critical * spread - shift)
        return float(np.mean(sum(scipy.special.ndtr(side) for side in outside)))

    highest = 4 * critical + 10
    return float(scipy.optimize.brentq(lambda shift: power(shift) - POWER, 0, highest))


NOTHING = Estimate(math.nan, count=0)


def over_seeds(values: Iterable[float]) -> Estimate:
    """Returns the mean of one loss per seed with its 95% t-interval (n - 1 degrees of freedom); none for one seed.

    No loss is below 0. If the interval would be, the seeds are too few for one: `over` is "few".
    """
    array = np.asarray([value for value in values if math.isfinite(value)], dtype=float)
    if array.size == 0:
        return NOTHING
    if array.size == 1:
        return Estimate(float(array[0]))
    half = _half_width(array)
    mean = _mean(array)
    if half > mean:
        return Estimate(mean, count=array.size, over="few")
    return Estimate(mean, mean - half, mean + half, array.size, "seeds")


def _half_width(array: np.ndarray) -> float:
    return float(scipy.special.stdtrit(array.size - 1, 0.5 + CONFIDENCE / 2)) * _standard_error(array)


def _mean(array: np.ndarray) -> float:
    with np.errstate(over="ignore"):  # a loss can be near the largest float; an overflow is shown as a dash
        return float(array.mean())


def _standard_error(array: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # as in _mean
        return float(array.std(ddof=1)) / math.sqrt(array.size)


@dataclass(frozen=True)
class Noise:
    """Known properties of a paired difference besides its seeds' own values.

    Attributes:
        deviation: of the differences between seeds, pooled over `arms` arms, with `freedom` degrees; nan: not pooled.
        freedom: nan: the pooled deviation is a lower bound, and the degrees are the seeds' own (`Pooled.refused`).
        text_variance: of the mean difference, from the choice of text, with `text_freedom` degrees; 0: unknown.
        resampled: the bootstrap's interval over documents and seeds together; nan: use that over seeds.
        level: of the interval and the test, two-sided.
    """

    deviation: float = math.nan
    arms: int = 0
    freedom: float = math.nan
    text_variance: float = 0.0
    text_freedom: float = math.inf
    resampled: tuple[float, float] = (math.nan, math.nan)
    level: float = 1 - CONFIDENCE


def paired(arm: Mapping[int, float], baseline: Mapping[int, float], noise: Noise | None = None) -> Difference:
    """Returns arm - baseline over their common seeds, with its interval and the paired t-test's p.

    The interval is Student's t; from BOOTSTRAP_FROM seeds on, at each end the wider of that and of the bootstrap's. A
    deviation pooled over arms replaces the seeds' own if it is larger, with its degrees of freedom if it has any. Noise
    of the text adds its variance (`Spread`).

    Args:
        arm, baseline: one value per seed.
        noise: further knowledge; None: none, 95%.
    """
    noise = noise or Noise()
    seeds = tuple(
        seed for seed in sorted(arm) if seed in baseline and math.isfinite(arm[seed]) and math.isfinite(baseline[seed])
    )
    differences = np.asarray([arm[seed] - baseline[seed] for seed in seeds], dtype=float)
    number = differences.size
    if number == 0:
        return Difference(math.nan, math.nan, math.nan, math.nan, seeds)
    mean = _mean(differences)
    if number == 1:
        return Difference(mean, math.nan, math.nan, math.nan, seeds)
    deviation, freedom = _standard_error(differences) * math.sqrt(number), number - 1.0
    if math.isfinite(noise.deviation):
        deviation = max(deviation, noise.deviation)
        freedom = noise.freedom if math.isfinite(noise.freedom) else freedom
    text = math.sqrt(noise.text_variance)
    result = Difference(
        mean, math.nan, math.nan, math.nan, seeds, deviation, freedom=freedom, text_error=text,
        text_freedom=noise.text_freedom,
    )  # fmt: skip
    spread = result.spread(number)
    p, half = spread.p(abs(mean)), spread.half(noise.level)
    resampled = noise.resampled if math.isfinite(noise.resampled[0]) else bootstrap(differences, noise.level)
    low, high = np.nanmin([mean - half, resampled[0]]), np.nanmax([mean + half, resampled[1]])
    pooled, floor = (noise.arms, 0) if math.isfinite(noise.freedom) else (0, noise.arms)
    return replace(result, low=float(low), high=float(high), p=p, bootstrap=resampled, pooled=pooled, floor=floor)


def bootstrap(values: np.ndarray, level: float = 1 - CONFIDENCE) -> tuple[float, float]:
    """Returns the expanded percentile interval of a mean (Hesterberg 2015, doi 10.1080/00031305.2015.1089789, 4.3).

    The percentile interval is too narrow for few values: it uses normal quantiles instead of Student's, and the
    resampled spread is smaller by sqrt(1 - 1/n). Taking percentiles further out compensates for both. nan for fewer
    than BOOTSTRAP_FROM values.
    """
    number = values.size
    if number < BOOTSTRAP_FROM or not np.isfinite(_standard_error(values)):
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    tail = expanded_tail(number, level)
    from scipy import stats  # slow to load, and few reports have this many seeds

    result = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, confidence_level=1 - 2 * tail, method="percentile",
        vectorized=True, rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def expanded_tail(number: int, level: float = 1 - CONFIDENCE) -> float:
    """Returns the share of resampled means of `number` values cut off at each end; see `bootstrap`."""
    return float(scipy.special.ndtr(math.sqrt(number / (number - 1)) * scipy.special.stdtrit(number - 1, level / 2)))


def two_shares(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the p-value of the two-sample z-test of equal shares."""
    share = (first[0] + second[0]) / (first[1] + second[1])
    error = math.sqrt(share * (1 - share) * (1 / first[1] + 1 / second[1]))
    distance = abs(first[0] / first[1] - second[0] / second[1])
    return float(2 * scipy.special.ndtr(-distance / error)) if error > 0 else 1.0


def newcombe(first: Sequence[float], second: Sequence[float], level: float = 1 - CONFIDENCE) -> tuple[float, float]:
    """Returns the interval of first share - second share, each given as (correct, examples)."""
    one, other = wilson(first[0], first[1], level), wilson(second[0], second[1], level)
    gap = one.mean - other.mean
    low = gap - math.hypot(one.mean - one.low, other.high - other.mean)
    high = gap + math.hypot(one.high - one.mean, other.mean - other.low)
    return low, high


def wilson(correct: float, examples: float, level: float = 1 - CONFIDENCE) -> Estimate:
    """Returns the share correct / examples with Wilson's interval; NOTHING for an impossible count."""
    if not (math.isfinite(correct) and math.isfinite(examples)) or examples < 1 or not 0 <= correct <= examples:
        return NOTHING
    # In closed form: scipy's is slow for a thousand cells.
    share, squared = correct / examples, _quantile(level) ** 2 / examples
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
