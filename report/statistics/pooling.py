"""One deviation between seeds for all arms of a study, unless a test rejects that they have the same.

The deviation of two or three seeds is mostly chance: half-widths of a tenth of the usual ones occur. k arms that ran
with the same n seeds have (k - 1)(n - 1) degrees of freedom together: the residuals of the runs' values after removing
each arm's and each seed's mean (a two-way table without interaction). A difference of two arms has the variance 2 s^2 /
n.

Bartlett's test over the arms' residuals decides at REFUSED_BELOW, a level at which it rejects one table in four with
equal deviations (Bancroft 1964 on preliminary tests): with few seeds it has little power, and pooling unequal
deviations is the worse error. For the same reason a difference keeps its own deviation if that is larger
(`intervals.paired`).

A test that selects one of two tests adds the false claims of both: a deviation that is small by chance makes
Bartlett's test reject and its own t-test claim. So a rejection costs the pooled degrees of freedom, and the pooled
deviation remains as a minimum; every claim is then one that the pooled test would make too. Only below UNEQUAL_BELOW,
where deviations clearly differ, does each difference use its own. The remaining error by simulation is in docs/log.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # a submodule loads at its first use

REFUSED_BELOW = 0.25
UNEQUAL_BELOW = 0.001


@dataclass(frozen=True)
class Pooled:
    """The pooled noise of a paired difference over the arms of a study.

    Attributes:
        deviation: of a paired difference of two arms in one seed.
        freedom: (arms - 1)(seeds - 1).
        arms, seeds: their numbers.
        p: of Bartlett's test that the arms' deviations are equal.
    """

    deviation: float
    freedom: int
    arms: int
    seeds: int
    p: float

    @property
    def refused(self) -> bool:
        """True if the arms' deviations may differ: the degrees of freedom are a difference's own."""
        return not self.p >= REFUSED_BELOW

    @property
    def unequal(self) -> bool:
        """True if the arms' deviations clearly differ: nothing is pooled."""
        return not self.p >= UNEQUAL_BELOW


def pooled(values: Mapping[str, Mapping[int, float]]) -> Pooled | None:
    """Returns the deviation over all arms and the test's verdict on it.

    Args:
        values: {arm: {seed: value}}; only finite ones.

    Returns:
        None with fewer than three arms or two seeds, if arms have different seeds, or if nothing varies.
    """
    seeds = sorted(next(iter(values.values()), {}))
    if len(values) < 3 or len(seeds) < 2 or any(sorted(one) != seeds for one in values.values()):
        return None
    table_KN = np.array([[one[seed] for seed in seeds] for one in values.values()])
    if not np.isfinite(table_KN).all():
        return None
    left_KN = residuals(table_KN)
    arms, number = table_KN.shape
    freedom = (arms - 1) * (number - 1)
    variance = float((left_KN**2).sum()) / freedom
    if not variance > 0 or not math.isfinite(variance):
        return None
    return Pooled(math.sqrt(2 * variance), freedom, arms, number, bartlett(left_KN))


def residuals(table_KN: np.ndarray) -> np.ndarray:
    """Returns the residuals of a table [arms, seeds] after removing the means of its rows and of its columns."""
    return table_KN - table_KN.mean(1, keepdims=True) - table_KN.mean(0, keepdims=True) + table_KN.mean()


def bartlett(groups_KN: np.ndarray) -> float:
    """Returns the p-value of Bartlett's test of equal variances of K groups of N (scipy.stats.bartlett)."""
    groups, number = groups_KN.shape
    variances = groups_KN.var(1, ddof=1)
    if not variances.min() > 0:
        return 0.0
    freedom = number - 1
    statistic = groups * freedom * math.log(variances.mean()) - freedom * float(np.log(variances).sum())
    correction = 1 + (groups / freedom - 1 / (groups * freedom)) / (3 * (groups - 1))
    return float(scipy.special.chdtrc(groups - 1, statistic / correction))
