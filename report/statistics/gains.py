"""Compute-equivalent gain: how much more compute the baseline needs to reach an arm's loss.

    gain(C) = C' / C   with   L_base(C') = L_arm(C)

Both curves are the mean loss over seeds at each rung of a ladder of budgets. L_base between its rungs is a monotone
cubic (PCHIP) in ln C through isotonic means: no functional form is fitted. For a loss that the baseline does not reach
on its ladder there is no C', and the gain is refused.

The interval is the set of gains that a paired t-test does not reject: for a gain g, seed s differs by

    d_s(g) = L_base,s(g C) - L_arm,s(C)

and g is kept if |mean d| <= t(0.975, n - 1) sd(d) / sqrt(n). A seed enters as one whole curve, so its rungs may be
arbitrarily dependent (branches of one run are). A percentile of resampled seeds would be too narrow: three seeds have
ten different resamples, and their range contains the true mean 75 times in 100.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # a submodule loads at its first use

CONFIDENCE = 0.95
SEEDS = 3  # minimum for a meaningful interval
FARTHEST = math.log(1e4)  # maximum distance in ln C at which the ends of an interval are searched
DELTA = 1e-3  # of Huber's loss on the log of losses, as in 2203.15556
SMALL = 1e-9  # nats within which two losses are equal


class Curve:
    """Losses of one arm over a ladder: monotone means over seeds, and each seed's deviations from them.

    Attributes:
        x: ln C of each rung, increasing; C in FLOPs.
        losses: nats, [seeds, rungs].
        means: decreasing with C (isotonic regression of the means over seeds), [rungs].
    """

    def __init__(self, flops: np.ndarray, losses: np.ndarray) -> None:
        self.x, self.losses = np.log(np.asarray(flops, float)), np.asarray(losses, float)
        if self.losses.shape[1:] != self.x.shape or len(self.x) < 2 or not np.all(np.diff(self.x) > 0):
            raise ValueError("a curve needs two rungs or more, increasing FLOPs, and a loss for each seed and rung")
        raw = self.losses.mean(axis=0)
        self.means = scipy.optimize.isotonic_regression(raw, increasing=False).x
        self.deviations = self.losses - raw
        self._between = scipy.interpolate.PchipInterpolator(self.x, self.means)
        ends = np.diff(self.means) / np.diff(self.x)
        self._slopes = ends[0], ends[-1]

    def at(self, x: float) -> float:
        """Returns the mean loss at ln C; outside the ladder along the slope of its outermost interval."""
        if x < self.x[0]:
            return float(self.means[0] + self._slopes[0] * (x - self.x[0]))
        if x > self.x[-1]:
            return float(self.means[-1] + self._slopes[1] * (x - self.x[-1]))
        return float(self._between(x))

    def seeds_at(self, x: float) -> np.ndarray:
        """Returns each seed's deviation from the mean at ln C, [seeds]; beyond the ends that of the end."""
        return np.array([np.interp(x, self.x, seed) for seed in self.deviations])

    def where(self, loss: float, near: float) -> float | None:
        """Returns the ln C at which the mean is `loss` (on a flat piece the one nearest to `near`); None outside."""
        if not self.means[-1] - SMALL <= loss <= self.means[0] + SMALL:
            return None
        if self.x[0] <= near <= self.x[-1] and abs(self.at(near) - loss) < SMALL:
            return near

        def crossing(level: float) -> float:
            if level >= self.means[0]:
                return float(self.x[0])
            if level <= self.means[-1]:
                return float(self.x[-1])
            return float(scipy.optimize.brentq(lambda x: self.at(x) - level, self.x[0], self.x[-1], xtol=1e-12))

        first, last = crossing(loss + SMALL), crossing(loss - SMALL)
        if last - first < 1e-3:
            return crossing(loss)
        return min(max(near, first), last)


@dataclass(frozen=True)
class Gain:
    """The gain at one rung. `gain`, `low` and `high` are nan if `refused` has a reason.

    Attributes:
        beyond: the ends of the interval (low, high) that are beyond the baseline's ladder, where its curve is extended
            along its last slope; an unbounded end is 0 or infinite.
    """

    flops: float
    loss: float
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    beyond: tuple[str, ...] = ()
    refused: str = ""


def critical(seeds: int) -> float:
    """Returns Student's t for a two-sided interval of CONFIDENCE over this many seeds."""
    return float(scipy.special.stdtrit(seeds - 1, 0.5 + CONFIDENCE / 2))


def at_rung(baseline: Curve, arm: Curve, rung: int) -> Gain:
    """Returns the gain of an arm at one of its rungs; both curves have the same seeds in the same order."""
    x, loss = float(arm.x[rung]), float(arm.means[rung])
    flops = math.exp(x)
    there = baseline.where(loss, x)
    if there is None:
        side = "below all" if loss < baseline.means[-1] else "above all"
        return Gain(flops, loss, refused=f"its loss is {side} the baseline's range: would be extrapolated")
    own = arm.deviations[:, rung]
    number = len(own)
    limit = critical(number) / math.sqrt(number)

    def excess(u: float, side: float) -> float:
        each = baseline.seeds_at(u) - own
        return baseline.at(u) - loss + side * limit * float(each.std(ddof=1))

    # The mean difference decreases with u: above the band's upper edge left of the interval, below its lower one right.
    low = _end(lambda u: -excess(u, -1.0), there, -1.0)
    high = _end(lambda u: excess(u, 1.0), there, 1.0)
    ends = {"low": low, "high": high}
    inside = (baseline.x[0] - SMALL, baseline.x[-1] + SMALL)
    beyond = tuple(name for name, end in ends.items() if not inside[0] <= end <= inside[1])
    return Gain(flops, loss, _factor(there - x), _factor(low - x), _factor(high - x), beyond)


def _factor(log: float) -> float:
    return math.exp(log) if log < math.inf else math.inf


def _end(inside: Callable[[float], float], start: float, way: float) -> float:
    """Returns where `inside` (above 0 within the interval) first falls to 0, starting at `start`; infinite if never."""
    step, before = 0.02, start
    if inside(start) <= 0:  # seeds without any spread
        return start
    while abs(before - start) < FARTHEST:
        after = before + way * step
        if inside(after) <= 0:
            return float(scipy.optimize.brentq(inside, min(before, after), max(before, after), xtol=1e-10))
        before, step = after, min(step * 1.3, 0.5)
    return way * math.inf


@dataclass(frozen=True)
class Lead:
    """Arm minus baseline at one rung's C, nats, with its interval over seeds; nan if the baseline has no curve.

    `p` is of the paired t-test, and the same for a gain other than 1 at this rung; `p_holm` after the correction over
    the report's claims, nan before it.
    """

    flops: float
    difference: float
    low: float
    high: float
    p: float = math.nan
    p_holm: float = math.nan

    @property
    def sign(self) -> int:
        """-1 if the arm is ahead, 1 if it is behind, 0 if neither."""
        return 0 if math.isnan(self.difference) else int(np.sign(self.difference))

    @property
    def resolved(self) -> bool:
        """True if the interval excludes 0, also after the correction if there is one."""
        return (self.low > 0 or self.high < 0) and not self.p_holm > 1 - CONFIDENCE


def leads(baseline: Curve, arm: Curve) -> list[Lead]:
    """Returns how far an arm is ahead or behind at equal compute, at each of its rungs within the baseline's ladder."""
    results = []
    limit = critical(len(arm.losses)) / math.sqrt(len(arm.losses))
    for rung, x in enumerate(arm.x):
        if not baseline.x[0] - SMALL <= x <= baseline.x[-1] + SMALL:
            results.append(Lead(math.exp(x), math.nan, math.nan, math.nan))
            continue
        raw = np.interp(x, baseline.x, baseline.losses.mean(axis=0) - baseline.means)
        differences = arm.losses[:, rung] - (baseline.at(x) + raw + baseline.seeds_at(float(x)))
        mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
        half = limit * deviation
        results.append(Lead(math.exp(x), mean, mean - half, mean + half, _p(mean, deviation, len(differences))))
    return results


def _p(mean: float, deviation: float, number: int) -> float:
    """Returns p of the two-sided t-test of a mean of paired differences; nan where the arms are the same."""
    if not deviation > 0:
        return math.nan if mean == 0 else 0.0
    return float(2 * scipy.special.stdtr(number - 1, -abs(mean) * math.sqrt(number) / deviation))


@dataclass(frozen=True)
class Fit:
    """The joint fit L = E + A_arm C^-alpha over all arms.

    Attributes:
        floor: E, nats.
        alpha: the exponent.
        gains: of each arm against the baseline, (A_base / A_arm)^(1/alpha).
        intervals: of the gains, by leaving out each seed as a whole (jackknife, t over seeds).
        lack: p of the F-test of lack of fit against the spread of seeds; nan without enough rungs.
        refused: the reason if there is no fit, else empty.
    """

    floor: float = math.nan
    alpha: float = math.nan
    gains: Mapping[str, float] | None = None
    intervals: Mapping[str, tuple[float, float]] | None = None
    lack: float = math.nan
    refused: str = ""


def fit(curves: Mapping[str, Curve], baseline: str) -> Fit:
    """Fits L = E + A_arm C^-alpha to every seed and rung of every arm, Huber's loss on ln L (2203.15556, D.2).

    All curves have the same seeds in the same order.
    """
    rungs = sum(len(curve.x) for curve in curves.values())
    needed = len(curves) + 3
    if rungs < needed:
        return Fit(refused=f"{rungs} rungs of {len(curves)} arms; E, alpha and an A each need at least {needed}")
    logs, parameters = _fitted(curves, DELTA)
    if logs is None:
        return Fit(refused="the fit did not converge")
    gains = {name: _gain(parameters, curves, name, baseline) for name in curves}
    number = len(next(iter(curves.values())).losses)
    left: dict[str, list[float]] = {name: [] for name in curves}
    for seed in range(number):
        fewer = {name: Curve(np.exp(curve.x), np.delete(curve.losses, seed, axis=0)) for name, curve in curves.items()}
        _, result = _fitted(fewer, DELTA, parameters)
        for name in curves:
            left[name].append(math.log(_gain(result, fewer, name, baseline)))
    intervals = {}
    for name in curves:
        array = np.array(left[name])
        error = math.sqrt((number - 1) / number * float(((array - array.mean()) ** 2).sum()))
        half = critical(number) * error
        intervals[name] = (gains[name] * math.exp(-half), gains[name] * math.exp(half))
    return Fit(float(np.exp(parameters[0])), float(np.exp(parameters[1])), gains, intervals, _lack(curves))


def _gain(parameters: np.ndarray, curves: Mapping[str, Curve], name: str, baseline: str) -> float:
    names, alpha = list(curves), math.exp(parameters[1])
    ratio = parameters[2 + names.index(baseline)] - parameters[2 + names.index(name)]
    return math.exp(min(max(ratio / alpha, -700.0), 700.0))


def _fitted(curves: Mapping[str, Curve], delta: float | None, start: np.ndarray | None = None) -> tuple:
    """Returns (ln of the fitted losses at each rung of each arm, [ln E, ln alpha, ln A of each arm])."""
    middle = float(np.mean(np.concatenate([curve.x for curve in curves.values()])))
    lowest = min(float(curve.losses.min()) for curve in curves.values())

    def model(parameters: np.ndarray) -> list[np.ndarray]:
        floor, alpha = np.exp(parameters[0]), np.exp(parameters[1])
        scales = parameters[2:]
        return [
            np.log(floor + np.exp(scale - alpha * (curve.x - middle)))
            for scale, curve in zip(scales, curves.values(), strict=True)
        ]

    def residuals(parameters: np.ndarray) -> np.ndarray:
        pairs = zip(curves.values(), model(parameters), strict=True)
        return np.concatenate([(line - np.log(curve.losses)).ravel() for curve, line in pairs])

    starts = [] if start is None else [start]
    for share in (0.3, 0.7, 0.95) if start is None else ():
        for alpha in (0.1, 0.3, 0.8):
            scales = [
                float(np.mean(np.log(curve.losses - share * lowest) + alpha * (curve.x - middle)))
                for curve in curves.values()
            ]
            starts.append(np.array([math.log(share * lowest), math.log(alpha), *scales]))
    bounds = ([-30.0, -8.0, *[-60.0] * len(curves)], [math.log(lowest), 3.0, *[60.0] * len(curves)])
    best = None
    for one in starts:
        one = np.clip(one, np.array(bounds[0]) + 1e-6, np.array(bounds[1]) - 1e-6)
        result = scipy.optimize.least_squares(
            residuals, one, bounds=bounds, x_scale="jac", loss="huber" if delta else "linear", f_scale=delta or 1.0
        )
        if best is None or result.cost < best.cost:
            best = result
    return (model(best.x), best.x) if best is not None and np.all(np.isfinite(best.x)) else (None, None)


def _lack(curves: Mapping[str, Curve]) -> float:
    """Returns p of the F-test of lack of fit: deviation of the means from the least-squares fit, against the seeds."""
    lines, parameters = _fitted(curves, None)
    if lines is None:
        return math.nan
    off = within = 0.0
    rungs = values = 0
    for curve, line in zip(curves.values(), lines, strict=True):
        logs = np.log(curve.losses)
        off += float((len(logs) * (logs.mean(axis=0) - line) ** 2).sum())
        within += float(((logs - logs.mean(axis=0)) ** 2).sum())
        rungs, values = rungs + logs.shape[1], values + logs.size
    free, spread = rungs - len(parameters), values - rungs
    if free < 1 or spread < 1 or within <= 0:
        return math.nan
    return float(scipy.special.fdtrc(free, spread, (off / free) / (within / spread)))
