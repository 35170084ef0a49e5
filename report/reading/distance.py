"""Retrieval distance: nearest copies, the local baseline, and conditions that do not measure distance.

Beyond the training length an evaluation also runs the model with its attention window set to the training length.
Correct answers of that local baseline were not retrieved from far. Older results have no distances: in them key-value
recall asked for every pair repeatedly along the row, so that each had a copy nearby.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from report.reading.directories import Arm, Study, dig, items, mapping, number, objects, text
from report.reading.measures import TRAINED, Point, loss_control_points, pooled, retrieval_points

BASELINE = "local baseline"  # the evaluations' name of the control
LOCAL = "does not measure distance"
UNKNOWN = "distance not known"


def controls(arm: Arm) -> list[Point]:
    """Returns the local baseline's shares by length, with the arm's own setting."""
    return [point for point in retrieval_points(arm, measure="control") if point.scaling == TRAINED]


def loss_controls(arm: Arm) -> list[Point]:
    """Returns the local baseline's losses by length, with the arm's own setting."""
    return [point for point in loss_control_points(arm) if point.scaling == TRAINED]


def _entries(arm: Arm, length: float | None = None, above: float = 1.0) -> Iterator[dict[str, Any]]:
    """Yields the retrieval entries of the arm's own setting, at one length or all above a multiple."""
    for run in arm.done:
        evaluated = run.evals.get("retrieval")
        headline = number(dig(evaluated, "pairs"))
        for raw in objects(evaluated, "by_length"):
            pairs = number(raw.get("pairs"))
            other = math.isfinite(headline) and math.isfinite(pairs) and pairs != headline
            own = (text(raw.get("scaling")) or TRAINED) == TRAINED and not other
            requested = math.isfinite(number(raw.get("accuracy"))) and number(raw.get("multiple")) > above
            if own and requested and length in (None, number(raw.get("length"))):
                yield raw


def mark(arm: Arm, length: float) -> str:
    """Returns LOCAL or UNKNOWN if an arm's retrieval at a length does not show distance, else "".

    UNKNOWN: the evaluation predates the measurement of distances, or was made without the local baseline.
    """
    messages = [raw.get("measures_distance") for raw in _entries(arm, length)]
    if any(value is False for value in messages):
        return LOCAL
    return UNKNOWN if any(value is not True for value in messages) else ""


def copies(arms: Iterable[Arm], length: float) -> tuple[float, float, float]:
    """Returns (median, lower, upper quartile) of the tokens back to nearest copies, medians over runs; nan if none."""
    results = []
    for raw in (raw for arm in arms for raw in _entries(arm, length, 0.0)):
        if there := mapping(raw.get("distance")):
            results.append((number(there.get("median")), *(number(value) for value in items(there, "quartiles"))))
    if not results:
        return math.nan, math.nan, math.nan
    middle, low, high = (statistics.median(values) for values in zip(*results, strict=True))
    return middle, low, high


def back(arms: Iterable[Arm], length: float) -> str:
    """Returns in words how far back the nearest copies are at a length; "" if unknown."""
    middle, low, high = copies(arms, length)
    return f"copy {middle:.0f} [{low:.0f}, {high:.0f}] tokens back" if math.isfinite(middle) else ""


def shown(arm: Arm, length: float) -> str:
    """Returns the note beside an arm's share at a length: the local baseline's, and what the share does not show."""
    share = pooled(point for point in controls(arm) if point.length == length)
    parts = [f"{BASELINE} {100 * share.mean:.1f}%"] if math.isfinite(share.mean) else []
    return ", ".join([*parts, *filter(None, [mark(arm, length)])])


def caption(study: Study) -> str:
    """Returns sentences on the distances, the local baseline and the conditions that do not measure distance."""
    beyond = {number(raw.get("length")) for arm in study.arms for raw in _entries(arm)}
    said = ""
    known = [(length, copies(study.arms, length)) for length in sorted(beyond)]
    known = [(length, result) for length, result in known if math.isfinite(result[0])]
    if known:
        message = "; ".join(f"{length:g}: {one[0]:.0f} [{one[1]:.0f}, {one[2]:.0f}]" for length, one in known)
        said += f" Tokens back to the nearest copy of the requested item, median and quartiles, by length: {message}."
    if any(controls(arm) for arm in study.arms):
        said += f" The {BASELINE} is the same models with their attention window set to the training length."
    for word, what in ((LOCAL, "Does not measure distance"), (UNKNOWN, "Distance not known, possibly local")):
        there = [f"{arm.name} at {n:g}" for arm in study.arms for n in sorted(beyond) if mark(arm, n) == word]
        every = len(there) == sum(1 for arm in study.arms for n in beyond if any(_entries(arm, n)))
        if there:
            said += f" {what}: {'everything beyond the training length' if every else '; '.join(there)}."
    return said
