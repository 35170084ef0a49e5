"""Differences between arms, and between RoPE scalings of one arm: what is resolved, and what is not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from report.claims.comparable import REFUSED, Mark, agreements, marks, reference_arm
from report.reading.directories import Arm, Study
from report.reading.measures import (
    TRAINED,
    Point,
    by_seed,
    from_eval,
    loss,
    loss_points,
    mean_loss,
    pooled,
    retrieval_points,
    scaling_order,
)
from report.statistics.intervals import CONFIDENCE, Difference, Estimate, holm, paired, paired_shares

RESOLVED = "resolved"
UNRESOLVED = "not resolved"
ONE_SEED = "one seed"
MISSING = "missing"


@dataclass(frozen=True)
class Comparison:
    """One arm against the study's baseline in one measure; `difference` is arm - baseline, paired by seed."""

    arm: str
    baseline: str
    measure: str  # "loss" (nats a token) or "retrieval" (a share)
    difference: Difference
    mine: Estimate
    other: Estimate
    verdict: str
    why: str = ""  # of a verdict MISSING or REFUSED
    marks: tuple[Mark, ...] = ()
    matched: tuple[tuple[str, float], ...] = ()  # what the sweep made equal, and how far off it is, as a share
    family: int = 1  # comparisons in this study with a p-value, over which Holm's correction is made
    p_holm: float = math.nan

    @property
    def smallest_seen(self) -> float:
        """The smallest true difference that this design shows 4 times in 5; nan with fewer than two seeds."""
        return self.difference.smallest_seen(self.family)

    @property
    def better(self) -> bool:
        """True where the arm's mean is the better one: a lower loss, a higher share."""
        return self.difference.mean < 0 if self.measure == "loss" else self.difference.mean > 0


def comparisons(study: Study) -> list[Comparison]:
    """Returns every arm against the baseline, by loss and by retrieval at the training length, where measured.

    All of them together are one family for Holm's correction: of studies in which nothing differs, 5% at most resolve
    anything.
    """
    baseline = reference_arm(study)
    if baseline is None:
        return []
    differing = marks(study)
    found: list[Comparison] = []
    for measure in ("loss", "retrieval"):
        if not any(_measured(arm, measure) for arm in study.arms):
            continue
        others = [arm for arm in study.arms if arm is not baseline]
        found += [_comparison(arm, baseline, measure, differing.get(arm.name, [])) for arm in others]
    return _corrected(found)


def _measured(arm: Arm, measure: str) -> bool:
    return bool(by_seed(arm, from_eval("loss", "loss")) if measure == "loss" else _at_home(arm))


def _at_home(arm: Arm) -> list[Point]:
    return [point for point in retrieval_points(arm) if point.key == (1.0, TRAINED)]


def _comparison(arm: Arm, baseline: Arm, measure: str, differing: list[Mark]) -> Comparison:
    if measure == "loss":
        value = from_eval("loss", "loss")
        difference = paired(by_seed(arm, value), by_seed(baseline, value))
        mine, other = loss(arm), loss(baseline)
    else:
        difference = paired_shares(_shares(_at_home(arm)), _shares(_at_home(baseline)))
        mine, other = pooled(_at_home(arm)), pooled(_at_home(baseline))
    verdict, why = _verdict(arm, baseline, measure, difference, differing)
    matched = tuple(agreements(arm, baseline))
    return Comparison(
        arm.name, baseline.name, measure, difference, mine, other, verdict, why, tuple(differing), matched
    )  # fmt: skip


def _shares(points: list[Point]) -> dict[int, tuple[float, float]]:
    return {point.seed: point.worth for point in points}


def _verdict(arm: Arm, baseline: Arm, measure: str, difference: Difference, differing: list[Mark]) -> tuple[str, str]:
    for one in (arm, baseline):
        if not one.done:
            return MISSING, f"{one.name} has no finished run"
        if not _measured(one, measure):
            return MISSING, f"{one.name} has no {measure} measured"
    refusals = [mark.words for mark in differing if mark.level == REFUSED and _touches(mark, measure)]
    if refusals:
        return REFUSED, "; ".join(refusals)
    if not difference.seeds:
        return MISSING, "no seed is done in both"
    if len(difference.seeds) == 1:
        return ONE_SEED, ""
    return (RESOLVED if difference.resolved else UNRESOLVED), ""


def _touches(mark: Mark, measure: str) -> bool:
    return {"validation": "loss", "task": "retrieval"}.get(mark.short, measure) == measure


def _corrected(family: list[Comparison]) -> list[Comparison]:
    """Adjusts p for the number of comparisons; what does not hold after that is not resolved."""
    adjusted = holm([one.difference.p if one.verdict in (RESOLVED, UNRESOLVED) else math.nan for one in family])
    size = sum(math.isfinite(p) for p in adjusted)
    found = []
    for one, p in zip(family, adjusted, strict=True):
        verdict = UNRESOLVED if one.verdict == RESOLVED and not p <= 1 - CONFIDENCE else one.verdict
        found.append(replace(one, p_holm=p, family=size, verdict=verdict))
    return found


@dataclass(frozen=True)
class ScalingLine:
    """One scaling at one length: its estimate, and its difference to the run's own scaling (None for that itself).

    `resolved`: the difference is, also after Holm's correction over the table's lines.
    """

    scaling: str
    estimate: Estimate
    difference: Difference | None
    resolved: bool = False


@dataclass(frozen=True)
class ScalingTable:
    """The RoPE scalings of one arm at one length, applied at evaluation only."""

    arm: str
    measure: str
    multiple: float
    length: float
    seeds: int
    lines: tuple[ScalingLine, ...]


def scaling_tables(study: Study) -> list[ScalingTable]:
    """Returns, for each arm and measure, a table a length beyond 1x at which several scalings were measured."""
    found = []
    for arm in study.arms:
        for measure, points in (("loss", loss_points(arm)), ("retrieval", retrieval_points(arm))):
            for multiple in sorted({point.multiple for point in points if point.multiple > 1}):
                here = [point for point in points if point.multiple == multiple]
                table = _scaling_table(arm, measure, multiple, here)
                if len(table.lines) > 1:
                    found.append(table)
    return found


def _scaling_table(arm: Arm, measure: str, multiple: float, points: list[Point]) -> ScalingTable:
    by_scaling: dict[str, list[Point]] = {}
    for point in points:
        by_scaling.setdefault(point.scaling, []).append(point)
    estimate: Callable[[list[Point]], Estimate] = mean_loss if measure == "loss" else pooled
    own = by_scaling.get(TRAINED, [])
    lines = []
    for scaling in sorted(by_scaling, key=scaling_order):
        here = by_scaling[scaling]
        gap = None if scaling == TRAINED or not own else _gap(measure, here, own)
        lines.append(ScalingLine(scaling, estimate(here), gap))
    seeds = len({point.seed for point in points})
    adjusted = holm([line.difference.p if line.difference else math.nan for line in lines])
    lines = [
        replace(line, resolved=line.difference is not None and line.difference.resolved and p <= 1 - CONFIDENCE)
        for line, p in zip(lines, adjusted, strict=True)
    ]
    return ScalingTable(arm.name, measure, multiple, points[0].length, seeds, tuple(lines))


def _gap(measure: str, mine: list[Point], own: list[Point]) -> Difference:
    if measure == "retrieval":
        return paired_shares(_shares(mine), _shares(own))
    return paired({point.seed: point.value for point in mine}, {point.seed: point.value for point in own})
