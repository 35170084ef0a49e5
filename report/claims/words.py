"""The claims in words: one sentence per comparison."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from report.claims.comparable import DIFFERS, NOTE, REFUSED, marks, matched, reference_arm, within
from report.claims.comparing import (
    MISSING,
    ONE_SEED,
    RESOLVED,
    UNRESOLVED,
    Comparison,
    ScalingLine,
    ScalingTable,
    claims,
    comparisons,
    confidence,
    is_open,
    look,
    scaling_tables,
    tested,
)
from report.page.formats import PLUS_MINUS, counted, decimals, fixed, interval, listed, multiple, percent, plural
from report.reading import selecting
from report.reading.directories import Study, Sweep
from report.reading.measures import scaling_label
from report.statistics import aggregates, solving
from report.statistics.intervals import Difference, Estimate


@dataclass(frozen=True)
class Sentence:
    """A sentence and its kind of claim: one of the verdicts, or "note"."""

    verdict: str
    text: str


def arms(study: Study) -> list[Sentence]:
    """Returns the claims for each arm against its baseline: resolved ones first, sorted by size."""
    result = comparisons(study)
    order = {RESOLVED: 0, UNRESOLVED: 1, ONE_SEED: 2, REFUSED: 3, MISSING: 4}
    ranked = sorted(result, key=lambda one: (one.measure != "loss", order[one.verdict], -_size(one)))
    return [Sentence(one.verdict, arm(one)) for one in ranked] + notes(study)


def notes(study: Study) -> list[Sentence]:
    """Returns the notes of a study: which seeds solved the task, results over all conditions."""
    return [Sentence("note", text) for text in (solving.sentence(study), _over_tasks(study)) if text]


def _over_tasks(study: Study) -> str:
    """Returns the arms over all retrieval conditions and seeds in words; empty if there are not several."""
    result = aggregates.table(study)
    if result is None:
        return ""
    arms = [f"{one.arm} {percent(one.iqm)}{_between(one.interval)}" for one in result.arms]
    chances = [
        f"{one.arm} {percent(one.improvement)}{_between(one.improvement_interval)}"
        for one in result.arms
        if one.improvement is not None
    ]
    few = "" if all(math.isfinite(one.interval[0]) for one in result.arms) else "; too few seeds for intervals"
    return (
        f"Over {plural(len(result.tasks), 'condition')} ({listed(list(result.tasks))} tokens) and all seeds, the mean "
        f"of the middle half of accuracies (IQM): {listed(arms)}. Probability that a run beats one of "
        f"{result.baseline}: {listed(chances)}{few}. These describe; nothing is tested by them."
        f"{_left_out(result.local)}"
    )


def _left_out(names: Sequence[str]) -> str:
    return (
        f" Left out, because no control shows that retrieval there measures distance: {listed(list(names))}."
        if names
        else ""
    )


def _between(ends: tuple[float, float]) -> str:
    return f" [{percent(ends[0])}, {percent(ends[1])}]" if math.isfinite(ends[0]) else ""


def _size(one: Comparison) -> float:
    return abs(one.difference.mean) if one.verdict == RESOLVED else 0.0


def arm(one: Comparison) -> str:
    """Returns a comparison as a sentence."""
    what = "loss" if one.measure == "loss" else "retrieval at the training length"
    pair = f"{one.arm} against {one.baseline}, {what}"
    if one.verdict == MISSING:
        return f"{pair}: unknown, {one.why}."
    if one.verdict == REFUSED:
        return f"{pair}: not comparable ({one.why}), so no difference is claimed."
    if one.verdict == ONE_SEED:
        return _one_seed(one, pair)
    equal = matched(one.matched)
    return f"{_claim(one, what)}{f'; {equal}' if equal else ''}{_qualification(one)}."


def _claim(one: Comparison, what: str) -> str:
    gap = one.difference
    seeds = plural(len(gap.seeds), "seed")
    if one.verdict == UNRESOLVED:
        shown = amount(one.measure, gap.mean, gap.half, signed=True)
        if one.few:
            return f"{one.arm} against {one.baseline}, {what}: too few seeds ({shown} in {seeds})"
        half = _within(one.measure, gap)
        said = f"smaller than {_care(one.care)} either way" if one.within_care else "no difference resolved"
        return (
            f"{one.arm} against {one.baseline}, {what}: {said}{_correction(one)} ({shown} {half}, "
            f"{seeds}{'' if one.within_care else _seen(one)})"
        )
    winner, loser = (one.arm, one.baseline) if one.better else (one.baseline, one.arm)
    rotated = gap.mean < 0
    low, high = (-gap.high, -gap.low) if rotated else (gap.low, gap.high)
    what = "" if one.measure == "loss" else f" in {what}"
    shown = amount(one.measure, abs(gap.mean), gap.half)
    return (
        f"{winner} beats {loser}{what} by {shown} {_ends(one.measure, low, high, gap.half)}, {seeds}{_correction(one)}"
    )


def _seen(one: Comparison) -> str:
    """Returns what the design could detect, and how many seeds would show a difference of `care`."""
    smallest = one.smallest_seen
    if not (math.isfinite(smallest) and smallest > 0):
        result = "; too few seeds to detect any possible difference" if len(one.difference.seeds) > 1 else ""
    else:
        result = f"; a true {amount(one.measure, smallest, one.difference.half)} would have been seen 4 times in 5"
    needed = one.seeds_for_care
    return f"{result}, {needed} seeds would show {_care(one.care)}" if result and needed else result


def _care(care: float) -> str:
    return f"{care:g} nats"


def _one_seed(one: Comparison, pair: str) -> str:
    gap = one.difference
    lower = "lower" if gap.mean < 0 else "higher"
    noise = "validation tokens" if one.measure == "loss" else "examples"
    return (
        f"{pair}: one seed cannot resolve anything about seeds. In seed {gap.seeds[0]} alone {one.arm} is "
        f"{amount(one.measure, abs(gap.mean), one.mine.half)} {lower} ({_value(one.measure, one.mine)} against "
        f"{_value(one.measure, one.other)}; intervals over {noise}: measurement noise only)"
        f"{_qualification(one)}."
    )


def _correction(one: Comparison) -> str:
    """Returns the effect of Holm's correction, if the report makes several claims and it matters."""
    if not one.difference.resolved:
        return ""
    if one.verdict == RESOLVED:
        holm = f" after Holm's correction ({one.family} comparisons)" if one.family > 1 else ""
        return f"; significant at 5%{holm}"
    if one.family < 2:
        return ""
    return (
        f": its own interval excludes 0, but of {one.family} comparisons one in 20 would by chance; after Holm's "
        f"correction p = {one.p_holm:.2g}, which is not below 0.05"
    )


def _qualification(one: Comparison) -> str:
    results = [mark for mark in one.marks if mark.level == DIFFERS]
    accidents, requested = ([mark.words for mark in results if mark.asked is way] for way in (False, True))
    said = f"; not like for like: {'; '.join(accidents)}" if accidents else ""
    return said + (f"; part of the question: {'; '.join(requested)}" if requested else "")


def amount(measure: str, value: float, half: float = math.nan, signed: bool = False) -> str:
    """Returns a difference with its unit: nats for a loss, points (of 100) for a share."""
    sign = "+" if signed and value > 0 else ""
    if measure == "loss":
        return f"{sign}{fixed(value, decimals(half, most=4))} nats"
    return f"{sign}{fixed(100 * value, 1)} points"


def _within(measure: str, gap: Difference) -> str:
    half = max(gap.high - gap.mean, gap.mean - gap.low)
    if gap.few:
        return "in too few seeds"
    return PLUS_MINUS + (fixed(half, decimals(half, most=4)) if measure == "loss" else fixed(100 * half, 1))


def _ends(measure: str, low: float, high: float, half: float) -> str:
    return interval(low, high, decimals(half, most=4)) if measure == "loss" else interval(100 * low, 100 * high, 1)


def _value(measure: str, one: Estimate) -> str:
    if measure == "loss":
        value, ends = fixed(one.mean), interval(one.low, one.high)
    else:
        value, ends = percent(one.mean), _between((one.low, one.high)).strip()
    ends = "(too few seeds for an interval)" if one.over == "few" else ends
    return f"{value} {ends}".strip()


def scalings(study: Study) -> tuple[list[Sentence], list[Sentence]]:
    """Returns the results of the RoPE scalings: the baseline at its longest length, and the rest."""
    tables = scaling_tables(study)
    names = list(dict.fromkeys(table.arm for table in tables))
    reference = reference_arm(study)
    leading = reference.name if reference is not None and reference.name in names else next(iter(names), "")
    longest = {
        measure: max(
            (table.multiple for table in tables if (table.arm, table.measure) == (leading, measure)), default=0.0
        )
        for measure in ("loss", "retrieval")
    }
    first: list[Sentence] = []
    rest: list[Sentence] = []
    for table in tables:
        leads = table.arm == leading and table.multiple == longest[table.measure]
        (first if leads else rest).append(_scaling(study, table))
    return first, rest


def _strength(table: ScalingTable, label: dict[str, str]) -> str:
    """Returns the strength of each scaling, as the factor of the NTK scaling that slows the slowest pair equally."""
    known = [line for line in table.lines if math.isfinite(line.stretch)]
    if not known:
        return ""
    return f" (slowest rotary pair slowed by: {listed([f'{label[one.scaling]} {one.stretch:.3g}' for one in known])})"


def _scaling(study: Study, table: ScalingTable) -> Sentence:
    own = [arm for arm in study.arms if arm.name == table.arm]
    label = {name: scaling_label(own, name) for name in (*(line.scaling for line in table.lines), *table.local)}
    values = [f"{label[line.scaling]} {_value(table.measure, line.estimate)}" for line in table.lines]
    what = "loss" if table.measure == "loss" else "retrieval"
    tokens = f" ({counted(table.length)} tokens)" if math.isfinite(table.length) else ""
    unit = " nats" if table.measure == "loss" else ""
    head = f"{table.arm}, {what} at {multiple(table.multiple)} the training length{tokens}"
    left = _left_out([label[name] for name in table.local])
    if not values:
        return Sentence("note", f"{head}: nothing is claimed.{left}")
    head += f": {listed(values)}{unit}{_strength(table, label)}"
    gaps = [line for line in table.lines if line.difference is not None and line.difference.seeds]
    reference = label[table.lines[0].scaling]
    if not gaps:
        return Sentence("note", f"{head}.{left}")
    if table.seeds < 2:
        noise = "validation tokens" if table.measure == "loss" else "examples"
        tail = (
            f"One seed cannot resolve anything about seeds; these are intervals over {noise}, measurement noise only."
        )
        return Sentence(ONE_SEED, f"{head}. {tail}{left}")
    resolved = [_moved(table.measure, line, label) for line in gaps if line.resolved]
    open_ = [_open(table.measure, line, label) for line in gaps if not line.resolved]
    parts = [f"Against {reference}, significant at 5%: {'; '.join(resolved)}"] if resolved else []
    if open_:
        parts.append(f"{'Not' if parts else f'Against {reference} not'} resolved: {listed(open_)}")
    said = f"{head}, {plural(table.seeds, 'seed')}. {'. '.join(parts)}.{left}"
    return Sentence(RESOLVED if resolved else UNRESOLVED, said)


def _moved(measure: str, line: ScalingLine, label: dict[str, str]) -> str:
    gap = line.difference
    assert gap is not None
    low, high = (-gap.high, -gap.low) if gap.mean < 0 else (gap.low, gap.high)
    way = "lower" if gap.mean < 0 else "higher"
    shown = amount(measure, abs(gap.mean), gap.half)
    return f"{label[line.scaling]} {way} by {shown} {_ends(measure, low, high, gap.half)}"


def _open(measure: str, line: ScalingLine, label: dict[str, str]) -> str:
    gap = line.difference
    assert gap is not None
    why = ""
    if gap.resolved:  # and not `line.resolved`: only the correction can have refused it
        why = f"; its own interval excludes 0, but p = {line.p_holm:.2g} after Holm's correction ({line.family} claims)"
    return f"{label[line.scaling]} ({amount(measure, gap.mean, gap.half, signed=True)} {_within(measure, gap)}{why})"


def comparability(study: Study) -> list[Sentence]:
    """Returns a sentence for each arm that differs from the baseline in more than the varied fields."""
    reference = reference_arm(study)
    results = []
    for name, own in marks(study).items():
        for level in (REFUSED, DIFFERS, NOTE):
            words = [mark.words for mark in own if mark.level == level]
            if words and reference is not None:
                said = "is not comparable with" if level == REFUSED else "differs from"
                results.append(Sentence(level, f"{name} {said} {reference.name}: {'; '.join(words)}."))
    for arm in study.arms:
        if arm is reference or reference is None:
            results += [Sentence(mark.level, f"{arm.name}: {mark.words}.") for mark in within(arm)]
    return sorted(results, key=lambda one: (REFUSED, DIFFERS, NOTE).index(one.verdict))


def state(sweep: Sweep) -> str:
    """Returns how many runs there are, by status."""
    counts: dict[str, int] = {}
    for run in sweep.runs:
        counts[run.status] = counts.get(run.status, 0) + 1
    if not counts:
        return "no runs"
    return f"{plural(sum(counts.values()), 'run')}: {', '.join(f'{n} {status}' for status, n in counts.items())}"


def preface(study: Study) -> str:
    """Returns what the study's arms are compared with, or why nothing is."""
    reference = reference_arm(study)
    if reference is None:
        only = f" {study.arms[0].name}" if study.arms else ""
        return f"One arm,{only}: nothing to compare it with." if only else "No arms."
    named = "the baseline" if study.baseline else "the first arm, because the study names no baseline"
    said = f"Every arm against {reference.name}, {named}. Lower loss is better; higher retrieval is better."
    return " ".join(part for part in (said, statistics(study), looks(study), selecting.preface(study)) if part)


def statistics(study: Study) -> str:
    """Returns the number of claims that the report corrects over, and the sources of variation in its intervals."""
    family = claims(study).family
    parts = []
    if family > 1:
        parts.append(
            f"All {family} claims tested in this report are one family: a significant difference is so at "
            "5% after Holm's correction over them; intervals are those of single comparisons."
        )
    return " ".join([*parts, *noise(study)])


def noise(study: Study, cite: Callable[[str], str] = lambda key: "") -> list[str]:
    """Returns what the intervals of differences include besides the seeds' own deviation, in sentences.

    Args:
        cite: from a key of `citations.STATISTICS` to the citation put after its method.
    """
    gaps: list[Difference] = []
    pooled, results = [], []
    for measure, unit in (("loss", "losses"), ("retrieval", "shares")):
        of = tested(study, measure)
        gaps += [*of.arms, *of.scalings]
        for own, noun in ((of.arms, "arms"), (of.scalings, "RoPE scalings")):
            most = max(own, key=lambda gap: gap.pooled, default=None)
            if most is not None and most.pooled:
                pooled.append(f"{most.pooled} {noun} for {unit} ({most.freedom:.0f} degrees of freedom)")
    if pooled:
        results.append(
            f"The deviation between seeds is pooled over {listed(pooled)} where Bartlett's test{cite('bartlett')} does "
            "not reject a common one."
        )
    if any(gap.floor for gap in gaps):
        results.append(
            f"Where Bartlett's test{cite('bartlett')} rejects a common deviation between seeds, a difference has its "
            "own degrees of freedom, and the larger of its own and the pooled deviation."
        )
    if any(gap.text_error > 0 for gap in gaps):
        results.append(
            f"Intervals of differences of losses include the choice of seeds and of validation text{cite('banerjee')}."
        )
    if any(math.isfinite(gap.bootstrap[0]) for gap in gaps):
        results.append(
            "Each end of an interval is the farther of Student's t and of the expanded percentile bootstrap"
            f"{cite('hesterberg')}."
        )
    return results


def looks(study: Study) -> str:
    """Returns how seeds were added: by a plan, or after a look without one; empty if the list never changed."""
    result, plan = look(study), study.plan
    if result is not None and plan is not None:
        levels = ", ".join(f"{100 * plan.level(number):.3g}%" for number in range(1, result.of + 1))
        made = f"Seeds are added by plan: looks at {listed([str(one) for one in plan.looks])} seeds, tested at {levels}"
        made += f"; intervals of differences are {confidence(study)}"
        if not result.number:
            return f"{made}; the first look is not complete."
        left = [one.arm for one in comparisons(study) if one.measure == "loss" and is_open(one)]
        state = "every comparison of losses is resolved or smaller than that" if not left else f"open: {listed(left)}"
        return f"{made}, until every difference is resolved or known to be smaller than {_care(plan.care)}. " + (
            f"After look {result.number} of {result.of}, {result.seeds} seeds, {state}."
        )
    if study.looked:
        counts = listed([str(one) for one in [*study.looked, len(study.seeds)]])
        times = len(study.looked) + 1
        return (
            f"Seeds were added after looking, without a plan: {times} looks, at {counts} seeds. With so many up to "
            f"{5 * times}% of sweeps in which nothing differs claim something; seeds=dict(looks=) plans them."
        )
    return ""
