"""The effective length of retrieval, under a threshold used in papers."""

from collections.abc import Iterable, Mapping
from typing import Any

from configs.rules.tasks import threshold


def holds(accuracy: float, given: str) -> bool:
    """Returns whether an accuracy reaches the threshold."""
    value, above = threshold(given)
    return accuracy > value if above else accuracy >= value


def lengths(by_length: Iterable[Mapping[str, Any]], given: str, measure: str = "accuracy") -> dict[str, Any]:
    """Returns, for each scaling, the longest length up to which every measured length reaches the threshold.

    Args:
        by_length: entries of eval/retrieval.json: length, scaling, accuracy (None if not evaluated), measures_distance;
            entries where that is false are left out.
        given: one of configs/rules/tasks.py's THRESHOLDS, or a number.
        measure: accuracy, or exact_match (of generated answers).

    Returns:
        {scaling: {"length": tokens, 0 if the shortest one already fails, "bounded": whether a longer one was evaluated
            and failed, so that the length is not merely the end of the grid}}.
    """
    results: dict[str, dict[str, Any]] = {}
    failed: set[str] = set()
    for entry in sorted(by_length, key=lambda entry: entry["length"]):
        scaling = entry["scaling"]
        value = entry.get(measure)
        value = value.get("accuracy") if isinstance(value, Mapping) else value
        if value is None or entry.get("measures_distance") is False:
            continue
        here = results.setdefault(scaling, {"length": 0, "bounded": False})
        if scaling in failed:
            continue
        if holds(value, given):
            here["length"] = entry["length"]
        else:
            here["bounded"] = True
            failed.add(scaling)
    return results
