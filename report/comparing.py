"""Differences between arms, and between RoPE scalings of one arm: what is resolved, and what is not."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from report.comparable import REFUSED, Mark, marks, reference_arm
from report.measures import (
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
from report.reading import Arm, Study
from report.statistics import Difference, Estimate, holm, paired, paired_shares

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
    family: int = 1  # comparisons in this study and measure with a p-value
    p_holm: float = math.nan

    @property
    def better(self) -> bool:
        """True where the arm's mean is the better one: a lower loss, a higher share."""
        return self.difference.mean < 0 if self.measure == "loss" else self.difference.mean > 0


def comparisons(study: Study) -> list[Comparison]:
    """Returns every arm against the baseline, by loss and by retrieval at the training length, where measured."""
    baseline = reference_arm(study)
    if baseline is None:
        return []
    differing = marks(study)
    found: list[Comparison] = []
    for measure in ("loss", "retrieval"):
        if not any(_measured(arm, measure) for arm in study.arms):
            continue
        others = [arm for arm in study.arms if arm is not baseline]
        family = [_comparison(arm, baseline, measure, differing.get(arm.name, [])) for arm in others]
        found += _corrected(family)
    return found


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
    return Comparison(arm.name, baseline.name, measure, difference, mine, other, verdict, why, tuple(differing))


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
    adjusted = holm([one.difference.p if one.verdict in (RESOLVED, UNRESOLVED) else math.nan for one in family])
    size = sum(math.isfinite(p) for p in adjusted)
    return [replace(one, p_holm=p, family=size) for one, p in zip(family, adjusted, strict=True)]


@dataclass(frozen=True)
class ScalingLine:
    """One scaling at one length: its estimate, and its difference to the run's own scaling (None for that itself)."""

    scaling: str
    estimate: Estimate
    difference: Difference | None


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
    return ScalingTable(arm.name, measure, multiple, points[0].length, seeds, tuple(lines))


def _gap(measure: str, mine: list[Point], own: list[Point]) -> Difference:
    if measure == "retrieval":
        return paired_shares(_shares(mine), _shares(own))
    return paired({point.seed: point.value for point in mine}, {point.seed: point.value for point in own})
