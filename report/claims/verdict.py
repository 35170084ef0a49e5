"""The main result: one sentence per study, then comparisons grouped by verdict, and which runs failed and why."""

import math
from dataclasses import dataclass

from report.claims import words
from report.claims.comparable import REFUSED
from report.claims.comparing import (
    MISSING,
    ONE_SEED,
    RESOLVED,
    UNRESOLVED,
    Comparison,
    comparisons,
)
from report.claims.words import Sentence
from report.page.formats import fixed, interval, listed, plural
from report.reading.directories import Run, Study
from report.reading.reproduce import all_arms

BROKEN = ("failed", "diverged", "unreadable")  # statuses of runs that ended badly
LONG = 300  # characters from which a note is collapsed
NAMED = 8  # names listed in a group's line


@dataclass(frozen=True)
class Group:
    """Comparisons with one verdict in one measure: `text` is a line, `details` one sentence each."""

    verdict: str
    text: str
    details: tuple[Sentence, ...]


def headline(study: Study) -> str:
    """Returns the study's result in one sentence; empty if nothing is compared."""
    result = comparisons(study)
    measure = "loss" if any(one.measure == "loss" for one in result) else "retrieval"
    own = [one for one in result if one.measure == measure]
    if not own:
        return ""
    tested = [one for one in own if one.verdict in (RESOLVED, UNRESOLVED)]
    resolved = sorted((one for one in tested if one.verdict == RESOLVED), key=_size)
    if not tested:
        return _untested(own)
    rest = len(own) - len(tested)
    beyond = f" {_not_tested(own)}" if rest else ""
    if not resolved:
        return _none(tested) + beyond
    return _some(resolved, tested) + beyond


def _size(one: Comparison) -> float:
    return -abs(one.difference.mean)


def _some(resolved: list[Comparison], tested: list[Comparison]) -> str:
    """Returns the resolved differences: up to two arms each, otherwise the best and the worst."""
    open_ = [one for one in tested if one.verdict == UNRESOLVED]
    left = ""
    if open_:
        of = open_[0].arm if len(open_) == 1 else plural(len(open_), "arm")
        left = f" For {of} no difference is resolved."
    if len(resolved) <= 2:
        return f"{listed([_differs(one) for one in resolved])}.{left}"
    better = [one for one in resolved if one.better]
    worse = [one for one in resolved if not one.better]
    parts = [f"{len(resolved)} of {plural(len(tested), 'arm')} differ from {resolved[0].baseline}"]
    parts += [f"{len(better)} better, most {_amount(better[0])}"] if better else []
    parts += [f"{len(worse)} worse, most {_amount(worse[0])}"] if worse else []
    return f"{parts[0]}: {'; '.join(parts[1:])}.{left}"


def _differs(one: Comparison) -> str:
    way = "better" if one.better else "worse"
    what = "" if one.measure == "loss" else " in retrieval at the training length"
    return f"{one.arm} is {way} than {one.baseline}{what} by {_bounds(one)}"


def _amount(one: Comparison) -> str:
    return f"{one.arm} by {_bounds(one)}"


def _bounds(one: Comparison) -> str:
    """Returns the size of a difference with its interval and unit: `0.037 [0.032, 0.042] nats`."""
    gap = one.difference
    low, high = (-gap.high, -gap.low) if gap.mean < 0 else (gap.low, gap.high)
    factor, places, unit = (1.0, 3, "nats") if one.measure == "loss" else (100.0, 1, "points")
    while one.measure == "loss" and places < 6 and float(fixed(abs(gap.mean), places)) < 5 * 10**-places:
        places += 1
    ends = interval(factor * low, factor * high, places)
    return f"{fixed(factor * abs(gap.mean), places)} {ends} {unit}"


def _none(tested: list[Comparison]) -> str:
    """Returns the sentence that no arm differs, with the bound on the difference, and what would resolve less."""
    baseline, number = tested[0].baseline, len(tested)
    bound = largest(tested)
    who = f"{tested[0].arm} does not differ" if number == 1 else f"None of {number} arms differs"
    if any(one.few for one in tested) or not math.isfinite(bound):
        of = tested[0].arm if number == 1 else f"any of {number} arms"
        return f"Too few seeds to tell a difference between {of} and {baseline}."
    loss = tested[0].measure == "loss"
    size = f"{_upwards(bound)} nats" if loss else f"{100 * bound:.1f} points"
    said = f"{who} from {baseline} by more than {size}"
    needed = [one.seeds_for_care for one in tested]
    care = tested[0].care
    if loss and all(needed):
        most = max(one for one in needed if one)
        return f"{said}; {most} seeds would show {care:g}."
    seen = [one.smallest_seen for one in tested]
    if loss and all(math.isfinite(one) for one in seen):
        return f"{said}; a true {_upwards(max(seen))} would have been seen 4 times in 5."
    return f"{said}."


def largest(tested: list[Comparison]) -> float:
    """Returns the size that no difference exceeds, with 95% confidence: the farthest end of all intervals.

    It holds for all comparisons together without a correction: it is wrong only if the interval of the largest true
    difference, a single comparison, is.
    """
    return max(max(abs(one.difference.low), abs(one.difference.high)) for one in tested)


def _upwards(value: float) -> str:
    """Returns a bound in two significant digits, rounded away from 0 so that it remains a bound."""
    if not value > 0:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.2g}"


def _untested(own: list[Comparison]) -> str:
    """Returns why no arm could be tested."""
    if all(one.verdict == ONE_SEED for one in own):
        return f"One seed an arm: no difference from {own[0].baseline} can be resolved."
    return f"No arm can be compared with {own[0].baseline} yet. {_not_tested(own)}"


def _not_tested(own: list[Comparison]) -> str:
    parts = []
    for verdict, said in (
        (REFUSED, "not comparable"),
        (MISSING, "without a result"),
        (ONE_SEED, "with one seed in common"),
    ):
        arms = [one.arm for one in own if one.verdict == verdict]
        if arms:
            parts.append(f"{listed(arms) if len(arms) <= 3 else plural(len(arms), 'arm')} {said}")
    return f"Not tested: {'; '.join(parts)}."


def groups(study: Study) -> list[Group]:
    """Returns the study's comparisons grouped by verdict and measure, the resolved ones first."""
    results: dict[tuple[str, str, str], list[Comparison]] = {}
    order = {RESOLVED: 0, UNRESOLVED: 1, ONE_SEED: 2, REFUSED: 3, MISSING: 4}
    ranked = sorted(
        comparisons(study),
        key=lambda one: (one.measure != "loss", order[one.verdict], _size(one) if one.verdict == RESOLVED else 0),
    )
    for one in ranked:
        results.setdefault((one.measure, one.verdict, _kind(one)), []).append(one)
    made = [_group(*key, members) for key, members in results.items()]
    return made + [_note(one) for one in words.notes(study)]


def _note(one: Sentence) -> Group:
    """Returns a note; a long one, which lists arms, is summarized by its subject."""
    head, colon, _ = one.text.partition(": ")
    return (
        Group(one.verdict, f"{head}.", (one,)) if len(one.text) > LONG and colon else Group(one.verdict, one.text, ())
    )


def _kind(one: Comparison) -> str:
    """Returns the qualifier of a comparison's verdict."""
    if one.verdict == RESOLVED:
        return "better" if one.better else "worse"
    if one.verdict == UNRESOLVED:
        if one.within_care:
            return "smaller than matters"
        if one.few:
            return "too few seeds"
        return "the interval excludes 0, but not after Holm's correction" if one.difference.resolved else ""
    return one.why.replace(f"{one.arm} has", "they have") if one.verdict in (REFUSED, MISSING) else ""


def _group(measure: str, verdict: str, kind: str, members: list[Comparison]) -> Group:
    details = tuple(Sentence(one.verdict, words.arm(one)) for one in members)
    if len(members) == 1:
        return Group(verdict, details[0].text, ())
    what = "loss" if measure == "loss" else "retrieval at the training length"
    baseline, head = members[0].baseline, plural(len(members), "arm")
    if verdict == RESOLVED:
        best = f", most {_amount(members[0])}"
        holm = f"; significant at 5% after Holm ({members[0].family} comparisons)" if members[0].family > 1 else ""
        text = f"{head} {kind} than {baseline} in {what}{best}{holm}"
    elif verdict == UNRESOLVED and kind == "smaller than matters":
        text = f"{head}: differences of {what} from {baseline} smaller than {members[0].care:g} nats either way"
    elif verdict == UNRESOLVED:
        text = f"{head}: no difference of {what} from {baseline} resolved{f' ({kind})' if kind else ''}"
    elif verdict == ONE_SEED:
        text = f"{head}: one seed cannot resolve a difference of {what} from {baseline}"
    else:
        text = f"{head}, {what}: {'not comparable' if verdict == REFUSED else 'no result'} ({kind})"
    names = [one.arm for one in members]
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return Group(verdict, f"{text}: {shown}." if text.endswith(baseline) else f"{text}. Arms: {shown}.", details)


@dataclass(frozen=True)
class Broken:
    """Runs of one arm that ended in the same way: `reason` is the last line of the error."""

    arm: str
    status: str
    reason: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> str:
        """`seed 3`, `seeds 0, 1`."""
        numbers = ", ".join(str(run.seed) for run in self.runs)
        return f"seed{'s' if len(self.runs) > 1 else ''} {numbers}"


def broken(study: Study) -> list[Broken]:
    """Returns the runs that failed, diverged or could not be read, by arm and reason; they are in no statistic."""
    results: dict[tuple[str, str, str], list[Run]] = {}
    for arm in all_arms(study):
        for run in arm.runs:
            if run.status in BROKEN:
                lines = run.error.strip().splitlines()
                results.setdefault((arm.name, run.status, lines[-1] if lines else "no reason recorded"), []).append(run)
    return [Broken(*key, tuple(runs)) for key, runs in results.items()]
