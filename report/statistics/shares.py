"""Shares of successes over seeds: seeds and rows both vary, and intervals stay within the bounds of a share.

One seed answers many rows. Rows of one seed show how well that seed does; they say nothing about another seed, which
may or may not have found the solution. So the mean over seeds has, at each end, the wider of two intervals: Student's t
over seeds, on the logit scale so that it stays within 0 and 1 (delta method, as in survey statistics: Korn and Graubard
1998), and Wilson's over the rows of all seeds, for seeds that agree better than their rows can show.

Coverage by simulation is in docs/log.md. No interval from few seeds can detect a rare second kind of seed: for tasks
with a sudden transition, count seeds (`solving.py`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import scipy  # a submodule loads at its first use

from report.statistics.intervals import (
    CONFIDENCE,
    NOTHING,
    Difference,
    Estimate,
    Noise,
    newcombe,
    paired,
    two_shares,
    wilson,
)

FEWEST = 3  # minimum seeds for an interval over seeds
WIDEST = 0.9  # a wider interval of a share is meaningless

Share = tuple[float, float]  # (correct, examples), counting only independent ones


def over_seeds(shares: Iterable[Share], level: float = 1 - CONFIDENCE) -> Estimate:
    """Returns the mean over seeds of a share with its interval; for one seed Wilson's over its rows.

    With two seeds, or if the interval would be wider than WIDEST, there is none: `over` is "few".
    """
    results = [(correct, examples) for correct, examples in shares if examples > 0]
    if not results:
        return NOTHING
    values = np.array([correct / examples for correct, examples in results])
    mean, total = float(values.mean()), sum(examples for _, examples in results)
    rows = wilson(min(mean, 1.0) * total, total, level)
    if len(results) == 1:
        return replace(rows, over="examples")
    low, high = logit_interval(values, level)
    low, high = min(low, rows.low, mean), max(high, rows.high, mean)
    if len(results) < FEWEST or high - low > WIDEST:
        return Estimate(mean, count=len(results), over="few", examples=round(total))
    return Estimate(mean, low, high, len(results), "seeds", round(total))


def logit_interval(values: np.ndarray, level: float = 1 - CONFIDENCE) -> tuple[float, float]:
    """Returns the t-interval of the mean of shares, computed on the logit scale; the mean itself if nothing varies.

    logit(mean) +- t * error / (mean * (1 - mean)), transformed back.
    """
    mean, number = float(values.mean()), values.size
    error = float(values.std(ddof=1)) / math.sqrt(number) if number > 1 else 0.0
    if not error > 0 or not 0 < mean < 1:
        return mean, mean
    half = -float(scipy.special.stdtrit(number - 1, level / 2)) * error / (mean * (1 - mean))
    middle = float(scipy.special.logit(mean))
    return float(scipy.special.expit(middle - half)), float(scipy.special.expit(middle + half))


def paired_shares(arm: Mapping[int, Share], baseline: Mapping[int, Share], noise: Noise | None = None) -> Difference:
    """Returns the paired difference of shares by seed, in shares of 1, within -1 and 1.

    Seeds that all solve a task have no spread, and a t-interval would then claim a certainty that a finite number of
    examples cannot give. So the interval is, at each end, the wider of the t-interval over seeds and of Newcombe's
    hybrid score interval over all examples (Newcombe 1998, method 10), and p the larger of both kinds of test. A true
    difference is within -1 and 1, so clipping the interval there costs no coverage. `few`: the interval before clipping
    was wider than any share can differ, or there are fewer than FEWEST seeds.
    """
    seeds = [seed for seed in sorted(arm) if seed in baseline and arm[seed][1] > 0 and baseline[seed][1] > 0]
    difference = paired(
        {seed: arm[seed][0] / arm[seed][1] for seed in seeds},
        {seed: baseline[seed][0] / baseline[seed][1] for seed in seeds},
        noise,
    )
    if len(seeds) < 2:
        return difference
    own = [sum(arm[seed][part] for seed in seeds) for part in (0, 1)]
    other = [sum(baseline[seed][part] for seed in seeds) for part in (0, 1)]
    low, high = newcombe(own, other, (noise or Noise()).level)
    p = max(difference.p, two_shares(own, other))
    few = len(seeds) < FEWEST or difference.half > 1
    low, high = max(-1.0, min(difference.low, low)), min(1.0, max(difference.high, high))
    return replace(difference, low=low, high=high, p=p, few=few)
