"""Differences between arms, and between RoPE scalings of one arm: which are resolved.

All claims of one report are one family for Holm's correction: every arm against its baseline in every measure,
every RoPE scaling at every length, and every arm at every rung of a ladder, of all its studies. Of reports in which
nothing differs, at most 5% claim anything.

Nothing is claimed about retrieval past the training length unless a control shows that it measures distance
(`measures_distance` is true); other conditions are left out and listed.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from report.claims import ladder as ladders
from report.claims.comparable import REFUSED, Mark, agreements, marks, reference_arm, touches, within
from report.reading.directories import Arm, Study
from report.reading.measures import (
    TRAINED,
    Point,
    by_seed,
    from_eval,
    loss,
    loss_points,
    mean_loss,
    pieces,
    pooled,
    retrieval_points,
    scaling_order,
)
from report.statistics import text_noise
from report.statistics.intervals import Difference, Estimate, Noise, holm, paired
from report.statistics.pooling import Pooled
from report.statistics.pooling import pooled as pooled_deviation
from report.statistics.sequential import LEVEL
from report.statistics.shares import paired_shares

Texts = Mapping[int, text_noise.Pieces | None]  # one side of a difference, by seed

# Verdicts, as tables in CSV and Parquet hold them; `shown` says how a reader sees them.
RESOLVED = "resolved"
UNRESOLVED = "not resolved"
ONE_SEED = "one seed"
MISSING = "missing"


def shown(verdict: str) -> str:
    """Returns a verdict as page, tables and terminal word it; others than a significant difference stay as they are."""
    return "significant at 5%" if verdict == RESOLVED else verdict


@dataclass(frozen=True)
class Comparison:
    """One arm against the study's baseline in one measure; `difference` is arm - baseline, paired by seed."""

    arm: str
    baseline: str
    measure: str  # "loss" (nats per token) or "retrieval" (a share)
    difference: Difference
    mine: Estimate
    other: Estimate
    verdict: str
    why: str = ""  # for the verdicts MISSING and REFUSED
    marks: tuple[Mark, ...] = ()
    matched: tuple[tuple[str, float], ...] = ()  # what the sweep matched, and the relative differences
    family: int = 1  # claims of the report with a p-value, over which Holm's correction is made
    p_holm: float = math.nan
    level: float = LEVEL  # spent at this look; LEVEL if no looks are planned
    care: float = math.nan  # the smallest difference that matters, from the sweep file
    within_care: bool = False  # the difference is shown to be smaller than `care`

    @property
    def smallest_seen(self) -> float:
        """The smallest true difference that this design detects 4 times in 5; nan if no possible one is."""
        smallest = self.difference.smallest_seen(self.family, self.level)
        return smallest if smallest <= self._largest else math.nan

    @property
    def few(self) -> bool:
        """True if the seeds are too few for a meaningful interval."""
        return self.difference.few or (self.difference.half > self._largest and not self.difference.resolved)

    @property
    def _largest(self) -> float:
        """The largest possible difference: for a share as far as 0 or 1, for a loss the baseline's own."""
        return self.other.mean if self.measure == "loss" else max(self.other.mean, 1 - self.other.mean)

    @property
    def seeds_for_care(self) -> int | None:
        """How many seeds would show a difference of `care` 4 times in 5; None if none would, or without `care`."""
        if self.measure != "loss" or not math.isfinite(self.care):
            return None
        return self.difference.seeds_to_see(self.care, self.family, self.level)

    @property
    def better(self) -> bool:
        """True if the arm's mean is better: a lower loss, a higher share."""
        return self.difference.mean < 0 if self.measure == "loss" else self.difference.mean > 0


@dataclass(frozen=True)
class Claims:
    """All claims of a study, corrected over the whole report."""

    arms: list[Comparison]
    scalings: "list[ScalingTable]"
    family: int  # claims in the report
    ladder: ladders.Results | None = None  # of a study with a ladder of budgets


def comparisons(study: Study) -> list[Comparison]:
    """Returns every arm against the baseline, by loss and by retrieval at the training length, if measured."""
    return list(claims(study).arms)


def scaling_tables(study: Study) -> "list[ScalingTable]":
    """Returns, for each arm and measure, a table per length beyond 1x at which several scalings were measured."""
    return list(claims(study).scalings)


def claims(study: Study) -> Claims:
    """Returns a study's claims, cached with the study: tables and charts need them many times."""
    if "_claims" not in vars(study):
        together = study.family if any(one is study for one in study.family) else [study]
        made = [(_comparisons(one), _scaling_tables(one), _ladder(one)) for one in together]
        for one, own in zip(together, _corrected(made), strict=True):
            vars(one)["_claims"] = own
    result: Claims = vars(study)["_claims"]
    return result


def is_open(one: Comparison) -> bool:
    """Returns whether more seeds could still decide a comparison: it is neither resolved nor smaller than `care`."""
    return one.verdict in (UNRESOLVED, ONE_SEED) and not one.within_care


@dataclass(frozen=True)
class Look:
    """State of a study with planned looks: look `number` (0: none is complete) of `of`, at `seeds` seeds."""

    number: int
    of: int
    seeds: int
    level: float


def look(study: Study) -> Look | None:
    """Returns the last look whose runs have all ended; None for a study without a plan."""
    plan = study.plan
    if plan is None:
        return None

    ended_of = [{run.seed for run in arm.runs if run.status in ("done", "diverged")} for arm in study.arms]

    def ended(number: int) -> bool:
        return all(set(study.seeds[:number]) <= seeds for seeds in ended_of)

    number = 0
    while number < plan.look(len(study.seeds)) and ended(plan.looks[number]):
        number += 1
    if number == 0:
        return Look(0, len(plan.looks), plan.looks[0], plan.level(1))
    return Look(number, len(plan.looks), plan.looks[number - 1], plan.level(number))


def looked_at(study: Study) -> tuple[Study, float]:
    """Returns the study restricted to its last complete look, and the level spent at this look."""
    result = look(study)
    if result is None:
        return study, LEVEL
    seen = set(study.seeds[: result.seeds])
    arms = [replace(arm, runs=[run for run in arm.runs if run.seed in seen]) for arm in study.arms]
    return replace(study, arms=arms), result.level


def confidence(study: Study) -> str:
    """Returns the confidence of the intervals of differences, `95%`; with looks that of the last complete."""
    result = look(study)
    return f"{100 * (1 - (LEVEL if result is None else result.level)):.4g}%"


@dataclass(frozen=True)
class Tested:
    """The differences that a study tests: of arms from the baseline, and of RoPE scalings from an arm's own."""

    arms: list[Difference]
    scalings: list[Difference]


def tested(study: Study, measure: str) -> Tested:
    """Returns the tested differences in a measure, "loss" or "retrieval"."""
    result = claims(study)
    arms = [one.difference for one in result.arms if one.measure == measure and math.isfinite(one.p_holm)]
    lines = [line for table in result.scalings if table.measure == measure for line in table.lines]
    return Tested(arms, [line.difference for line in lines if line.difference and math.isfinite(line.p_holm)])


def _comparisons(study: Study) -> list[Comparison]:
    baseline = reference_arm(study)
    if baseline is None:
        return []
    differing, none_yet = marks(study), _no_look(study)
    study, level = looked_at(study)
    baseline = reference_arm(study)
    assert baseline is not None
    results: list[Comparison] = []
    for measure in ("loss", "retrieval"):
        if not any(_measured(arm, measure) for arm in study.arms):
            continue
        others = [arm for arm in study.arms if arm is not baseline]
        apart = [arm.name for arm in others if _refusals(differing.get(arm.name, []), measure)]
        together = _together([arm for arm in study.arms if arm.name not in apart], baseline, measure)
        for arm in others:
            shared = None if arm.name in apart else together
            one = _comparison(arm, baseline, measure, differing.get(arm.name, []), shared, level)
            one = replace(one, care=study.care) if measure == "loss" else one
            open_ = none_yet and one.verdict in (RESOLVED, UNRESOLVED, ONE_SEED)
            results.append(replace(one, verdict=MISSING, why=none_yet) if open_ else one)
    return results


def _no_look(study: Study) -> str:
    """Returns why nothing is claimed yet in a study with planned looks; empty if claims may be made."""
    result = look(study)
    if result is None or result.number:
        return ""
    return f"look 1 of {result.of} ({result.seeds} seeds) is not complete"


def _together(arms: Sequence[Arm], baseline: Arm, measure: str) -> Pooled | None:
    """Returns the deviation over all arms that ran with the baseline's seeds; None if deviations clearly differ."""
    by_arm = {arm.name: values(arm, measure) for arm in arms}
    seeds = set(by_arm[baseline.name])
    result = pooled_deviation({name: one for name, one in by_arm.items() if set(one) == seeds})
    return None if result is None or result.unequal else result


def values(arm: Arm, measure: str) -> dict[int, float]:
    """Returns each finished seed's loss, or its retrieval at the training length."""
    if measure == "loss":
        return by_seed(arm, from_eval("loss", "loss"))
    return {point.seed: point.value for point in _at_home(arm)}


def _measured(arm: Arm, measure: str) -> bool:
    return bool(by_seed(arm, from_eval("loss", "loss")) if measure == "loss" else _at_home(arm))


def _at_home(arm: Arm) -> list[Point]:
    return [point for point in retrieval_points(arm) if point.key == (1.0, TRAINED)]


def _comparison(
    arm: Arm, baseline: Arm, measure: str, differing: list[Mark], together: Pooled | None, level: float
) -> Comparison:
    own, other = values(arm, measure), values(baseline, measure)
    noise = _noise(together if set(own) == set(other) else None, level)
    if measure == "loss":
        texts = [{run.seed: pieces(run) for run in side.done} for side in (arm, baseline)]
        difference = _losses(own, other, texts[0], texts[1], noise)
        shown = loss(arm), loss(baseline)
    else:
        difference = paired_shares(_shares(_at_home(arm)), _shares(_at_home(baseline)), noise)
        shown = pooled(_at_home(arm)), pooled(_at_home(baseline))
    verdict, why = _verdict(arm, baseline, measure, difference, differing)
    matched = tuple(agreements(arm, baseline))
    return Comparison(
        arm.name, baseline.name, measure, difference, *shown, verdict, why, tuple(differing), matched, level=level
    )  # fmt: skip


def _noise(together: Pooled | None, level: float) -> Noise:
    if together is None:
        return Noise(level=level)
    freedom = math.nan if together.refused else together.freedom
    return Noise(together.deviation, together.arms, freedom, level=level)


def _losses(own: Mapping[int, float], other: Mapping[int, float], mine: Texts, its: Texts, noise: Noise) -> Difference:
    """Returns the paired difference of losses; no interval where it would reach farther than a loss can fall."""
    seeds = set(own) & set(other)
    gap = paired(own, other, _with_text(noise, mine, its, seeds))
    if not seeds or gap.resolved or not gap.half > sum(other[seed] for seed in seeds) / len(seeds):
        return gap
    return replace(gap, low=math.nan, high=math.nan, few=True)


def _with_text(noise: Noise, arm: Texts, baseline: Texts, seeds: set[int]) -> Noise:
    """Returns the noise including that of the text, if both sides have the loss of each piece of the same text."""
    kept = tuple(sorted(seeds))
    mine, other = ({seed: one for seed, one in side.items() if one is not None} for side in (arm, baseline))
    if len(kept) < 2 or not all(seed in side for seed in kept for side in (mine, other)):
        return noise
    sums_SD, tokens_D = text_noise.differences(mine, other, kept), mine[kept[0]].tokens
    if sums_SD is None:
        return noise
    variance, freedom = text_noise.variance(sums_SD, tokens_D)
    resampled = text_noise.bootstrap(sums_SD, tokens_D, noise.level)
    return replace(noise, text_variance=variance, text_freedom=freedom, resampled=resampled)


def _shares(points: list[Point]) -> dict[int, tuple[float, float]]:
    return {point.seed: point.worth for point in points}


def _verdict(arm: Arm, baseline: Arm, measure: str, difference: Difference, differing: list[Mark]) -> tuple[str, str]:
    for one in (arm, baseline):
        if not one.done:
            return MISSING, f"{one.name} has no finished run"
        if not _measured(one, measure):
            stale = next((f" ({run.stale[measure]})" for run in one.done if measure in run.stale), "")
            return MISSING, f"{one.name} has no {measure} measured{stale}"
    refusals = _refusals(differing, measure)
    if refusals:
        return REFUSED, "; ".join(refusals)
    if not difference.seeds:
        return MISSING, "no seed is done in both arms"
    if len(difference.seeds) == 1:
        return ONE_SEED, ""
    return (RESOLVED if difference.resolved else UNRESOLVED), ""


def _refusals(differing: list[Mark], measure: str) -> list[str]:
    return [mark.words for mark in differing if mark.level == REFUSED and touches(mark, measure)]


def _ladder(study: Study) -> ladders.Results | None:
    return ladders.results(study) if study.ladder is not None else None


def _corrected(
    studies: "list[tuple[list[Comparison], list[ScalingTable], ladders.Results | None]]",
) -> list[Claims]:
    """Adjusts p for the number of claims in all studies; differences that do not pass are not resolved.

    A look's p is relative to the level spent at it. Equivalence ("smaller than `care`") is adjusted separately: for one
    comparison only one of the two claims can be false.
    """
    tested = [_p(one) for arms, _, _ in studies for one in arms]
    tested += [line.p for _, tables, _ in studies for table in tables for line in table.lines]
    tested += [p for _, _, climbed in studies for p in ladders.tested(climbed)]
    adjusted, size = iter(holm(tested)), sum(map(math.isfinite, tested))
    smaller = iter(holm([_equivalence(one) for arms, _, _ in studies for one in arms]))
    arms_of = [[_judged(one, next(adjusted), size, next(smaller)) for one in arms] for arms, _, _ in studies]
    tables_of = [
        [replace(table, lines=tuple(_held(line, next(adjusted), size) for line in table.lines)) for table in tables]
        for _, tables, _ in studies
    ]
    ladders_of = [
        climbed and ladders.corrected(climbed, itertools.islice(adjusted, len(ladders.tested(climbed))))
        for _, _, climbed in studies
    ]
    return [
        Claims(arms, tables, size, climbed)
        for arms, tables, climbed in zip(arms_of, tables_of, ladders_of, strict=True)
    ]


def _p(one: Comparison) -> float:
    """Returns the p-value of a tested comparison, at the level of its look; nan for others."""
    if one.verdict not in (RESOLVED, UNRESOLVED):
        return math.nan
    return min(1.0, one.difference.p * LEVEL / one.level)


def _equivalence(one: Comparison) -> float:
    """Returns twice the larger p of the two one-sided tests that the difference is within +-care; nan for none."""
    gap = one.difference
    if one.verdict not in (RESOLVED, UNRESOLVED) or not one.care > 0 or not gap.error > 0:
        return math.nan
    inside = one.care - abs(gap.mean)
    return min(1.0, gap.spread(len(gap.seeds)).p(inside) * LEVEL / one.level) if inside > 0 else 1.0


def _judged(one: Comparison, p: float, size: int, smaller: float) -> Comparison:
    verdict = UNRESOLVED if one.verdict == RESOLVED and not p <= LEVEL else one.verdict
    gap = one.difference
    inside = smaller <= LEVEL and -one.care < gap.low and gap.high < one.care
    return replace(one, p_holm=p, family=size, verdict=verdict, within_care=inside)


def _held(line: "ScalingLine", p: float, size: int) -> "ScalingLine":
    resolved = line.difference is not None and line.difference.resolved and p <= LEVEL
    return replace(line, resolved=resolved, p_holm=p, family=size)


@dataclass(frozen=True)
class ScalingLine:
    """One scaling at one length: its estimate, and its difference from the run's own scaling (None for that itself).

    `resolved`: the difference is, after Holm's correction over the report's `family` claims, tested at `level`.
    """

    scaling: str
    estimate: Estimate
    difference: Difference | None
    resolved: bool = False
    p_holm: float = math.nan
    family: int = 1
    level: float = LEVEL
    stretch: float = math.nan  # factor by which the slowest rotary pair is slowed: the scaling's strength

    @property
    def p(self) -> float:
        """The p-value of its difference, at the level of its look; nan for none, such as for the same function."""
        gap = self.difference
        same = gap is None or (gap.mean == 0 and gap.deviation == 0)
        return math.nan if gap is None or same else min(1.0, gap.p * LEVEL / self.level)


@dataclass(frozen=True)
class ScalingTable:
    """The RoPE scalings of one arm at one length, applied at evaluation only.

    `local`: scalings left out of `lines`, whose retrieval at this length does not measure distance.
    """

    arm: str
    measure: str
    multiple: float
    length: float
    seeds: int
    lines: tuple[ScalingLine, ...]
    local: tuple[str, ...] = ()


def _scaling_tables(study: Study) -> list[ScalingTable]:
    study, level = looked_at(study)
    results = []
    for arm in study.arms:
        for measure, points in (("loss", loss_points(arm)), ("retrieval", retrieval_points(arm))):
            if _refusals(within(arm), measure):  # seeds evaluated with different settings have no mean
                continue
            for multiple in sorted({point.multiple for point in points if point.multiple > 1}):
                here = [point for point in points if point.multiple == multiple]
                table = _scaling_table(arm, measure, multiple, here, level)
                if len(table.lines) + len(table.local) > 1:
                    results.append(table)
    return results


def _scaling_table(arm: Arm, measure: str, multiple: float, points: list[Point], level: float) -> ScalingTable:
    seeds, length = len({point.seed for point in points}), points[0].length
    local = tuple(sorted({point.scaling for point in points if point.local}, key=scaling_order))
    by_scaling: dict[str, list[Point]] = {}
    for point in (point for point in points if point.scaling not in local):
        by_scaling.setdefault(point.scaling, []).append(point)
    estimate: Callable[[Iterable[Point]], Estimate] = mean_loss if measure == "loss" else pooled
    own = by_scaling.get(TRAINED, [])
    together = pooled_deviation({name: {one.seed: one.value for one in here} for name, here in by_scaling.items()})
    noise = _noise(None if together is None or together.unequal else together, level)
    lines = []
    for scaling in sorted(by_scaling, key=scaling_order):
        here = by_scaling[scaling]
        gap = None if scaling == TRAINED or not own else _gap(measure, here, own, noise)
        lines.append(ScalingLine(scaling, estimate(here), gap, level=level, stretch=here[0].stretch))
    return ScalingTable(arm.name, measure, multiple, length, seeds, tuple(lines), local)


def _gap(measure: str, mine: list[Point], own: list[Point], noise: Noise) -> Difference:
    if measure == "retrieval":
        return paired_shares(_shares(mine), _shares(own), noise)
    values = [{point.seed: point.value for point in side} for side in (mine, own)]
    texts = [{point.seed: point.text for point in side} for side in (mine, own)]
    return _losses(values[0], values[1], texts[0], texts[1], noise)
