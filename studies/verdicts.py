"""The verdict on every published ordering, from a study's results by the report's statistics.

A difference is paired by seed and, of the loss at the training length, by document; its deviation is pooled as the
report pools (over the arms of one study, or the scalings of one arm) where Bartlett's test does not refuse; Holm's
correction is over all orderings of the study that were measured. A study that was looked at more than once tests, and
makes its intervals, at the level that its last look may spend. "Shows" and "reversed" are resolved, in the published
direction and against it. An ordering that says "no difference" shows where two one-sided tests place the difference
within `care`, and is reversed where it is resolved to lie beyond `care`. It is left open where both shares are below
its `least`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy  # a submodule loads at its first use

from report.statistics import text_noise
from report.statistics.intervals import Difference, Noise, holm, paired
from report.statistics.pooling import pooled
from report.statistics.sequential import LEVEL
from report.statistics.shares import paired_shares
from studies.results import Results
from studies.spec import LOCAL, LOSS, SHARES, Cell, Ordering, Study

SHOWS, REVERSED, OPEN, MISSING = "shows", "reversed", "not resolved at this size", "not measured"


@dataclass(frozen=True)
class Verdict:
    """What became of an ordering; `p_holm` is corrected over `family` orderings."""

    ordering: Ordering
    difference: Difference
    verdict: str
    p_holm: float = math.nan
    family: int = 0

    @property
    def share(self) -> bool:
        """True where the difference is one of shares."""
        return self.ordering.cell.measure in SHARES

    @property
    def smallest_seen(self) -> float:
        """The smallest true difference that this design shows 4 times in 5; nan where there is none."""
        return self.difference.smallest_seen(max(1, self.family))


def verdicts(study: Study, results: Results) -> list[Verdict]:
    """Returns the verdict on each of a study's orderings, in order."""
    gaps = [difference(results, one.cell, one.against) for one in study.orderings]
    tested = [_at_level(_p(one, gap), results) for one, gap in zip(study.orderings, gaps, strict=True)]
    adjusted, family = holm(tested), sum(map(math.isfinite, tested))
    found = zip(study.orderings, gaps, adjusted, strict=True)
    judged = [_judged(Verdict(one, gap, MISSING, p, family)) for one, gap, p in found]
    return [replace(one, verdict=OPEN) if _at_chance(results, one) else one for one in judged]


def difference(results: Results, cell: Cell, against: Cell) -> Difference:
    """Returns cell - against, paired by seed, with all that is known of its noise."""
    noise = _noise(results, cell, against)
    if cell.measure in SHARES:
        return paired_shares(results.shares(cell), results.shares(against), noise)
    mine, other = results.values(cell), results.values(against)
    return paired(mine, other, _with_text(results, cell, against, noise))


def _noise(results: Results, cell: Cell, against: Cell) -> Noise:
    """Returns the level, and the deviation pooled over like cells with the same seeds, where it may be."""
    level, values = results.level, results.values(cell)
    if cell.condition != against.condition or set(values) != set(results.values(against)):
        return Noise(level=level)
    alike = {_name(one): results.values(one) for one in _alike(results, cell, against)}
    found = pooled({name: one for name, one in alike.items() if set(one) == set(values)})
    if found is None or found.refused:
        return Noise(level=level)
    return Noise(found.deviation, found.arms, found.freedom, level=level)


def _alike(results: Results, cell: Cell, against: Cell) -> list[Cell]:
    """Returns what the report pools over: the scalings of one arm, else the arms of one study of the sweep."""
    cells = [one for one in results.cells(cell.condition) if one.scaling != LOCAL]
    if cell.arm == against.arm:
        return [one for one in cells if one.arm == cell.arm]
    study = results.study(cell.arm)
    if study != results.study(against.arm) or cell.scaling != against.scaling:
        return []
    return [one for one in cells if one.scaling == cell.scaling and results.study(one.arm) == study]


def _name(cell: Cell) -> str:
    return f"{cell.arm} {cell.scaling}"


def _with_text(results: Results, cell: Cell, against: Cell, noise: Noise) -> Noise:
    if cell.measure != LOSS or against.measure != LOSS:
        return noise
    seeds = tuple(sorted(set(results.values(cell)) & set(results.values(against))))
    mine, other = (
        {seed: results.text[one.arm, seed] for seed in seeds if (one.arm, seed) in results.text}
        for one in (cell, against)
    )
    if len(seeds) < 2 or len(mine) < len(seeds) or len(other) < len(seeds):
        return noise
    sums_SD = text_noise.differences(mine, other, seeds)
    if sums_SD is None:
        return noise
    tokens_D = mine[seeds[0]].tokens
    variance, freedom = text_noise.variance(sums_SD, tokens_D)
    resampled = text_noise.bootstrap(sums_SD, tokens_D, noise.level)
    return replace(noise, text_variance=variance, text_freedom=freedom, resampled=resampled)


def _at_chance(results: Results, one: Verdict) -> bool:
    """Returns True where both cells of an ordering are below the share from which they say anything."""
    ordering = one.ordering
    if one.verdict == MISSING:
        return False
    means = [np.mean(list(results.values(cell).values())) for cell in (ordering.cell, ordering.against)]
    return bool(max(means) < ordering.least)


def _p(one: Ordering, gap: Difference) -> float:
    """Returns the p-value that Holm's correction takes: of no difference, or of one of exactly `care`."""
    if len(gap.seeds) < 2:
        return math.nan
    if one.sign:
        return gap.p
    if not gap.error > 0:
        return math.nan
    return float(2 * scipy.special.stdtr(gap.freedom, -abs(abs(gap.mean) - one.care) / gap.error))


def _at_level(p: float, results: Results) -> float:
    """Returns p as if a single look spent all of LEVEL; nan stays nan."""
    return min(1.0, p * LEVEL / results.level) if math.isfinite(p) else p


def _judged(one: Verdict) -> Verdict:
    gap, ordering = one.difference, one.ordering
    if len(gap.seeds) < 2:
        return one
    holds = one.p_holm <= LEVEL and not gap.few
    if ordering.sign:
        resolved = holds and gap.resolved
        right = gap.mean * ordering.sign > 0
        return replace(one, verdict=(SHOWS if right else REVERSED) if resolved else OPEN)
    inside = -ordering.care < gap.low and gap.high < ordering.care
    outside = gap.low > ordering.care or gap.high < -ordering.care
    return replace(one, verdict=SHOWS if holds and inside else REVERSED if holds and outside else OPEN)
