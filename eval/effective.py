"""How far a model's retrieval holds: the effective length under a threshold that papers have named."""

from collections.abc import Iterable, Mapping
from typing import Any

from configs.errors import UserError, nearest

# name -> (accuracy, whether it must be exceeded): PI, arXiv 2306.15595, section 3.3; YaRN, arXiv 2309.00071, section
# 4.3.2; RULER, arXiv 2404.06654, section 4 (Llama-2-7B's at 4K).
THRESHOLDS: dict[str, tuple[float, bool]] = {"pi": (0.2, False), "yarn": (0.8, False), "ruler": (0.856, True)}


def threshold(given: str) -> tuple[float, bool]:
    """Returns (accuracy, whether it must be exceeded) of a name of THRESHOLDS or a number in (0, 1].

    Raises:
        UserError: it is neither.
    """
    if given in THRESHOLDS:
        return THRESHOLDS[given]
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        names = ", ".join(THRESHOLDS)
        raise UserError(
            f"eval.retrieval.threshold = {given!r}: must be {names} or a number in (0, 1]{nearest(given, THRESHOLDS)}"
        )
    return value, False


def holds(accuracy: float, given: str) -> bool:
    """Tells whether an accuracy reaches the threshold."""
    value, above = threshold(given)
    return accuracy > value if above else accuracy >= value


def lengths(by_length: Iterable[Mapping[str, Any]], given: str, measure: str = "accuracy") -> dict[str, Any]:
    """Returns, for each scaling, the longest length up to which every measured length reaches the threshold.

    Args:
        by_length: entries of eval/retrieval.json: length, scaling, accuracy (None where it could not be asked).
        given: see `threshold`.
        measure: accuracy, or exact_match (of generated answers).

    Returns:
        {scaling: {"length": tokens, 0 where the shortest one fails already, "bounded": whether a longer one was asked
        and failed, so that the length is no mere end of the grid}}.
    """
    found: dict[str, dict[str, Any]] = {}
    failed: set[str] = set()
    for entry in sorted(by_length, key=lambda entry: entry["length"]):
        scaling = entry["scaling"]
        value = entry.get(measure)
        value = value.get("accuracy") if isinstance(value, Mapping) else value
        if value is None:
            continue
        here = found.setdefault(scaling, {"length": 0, "bounded": False})
        if scaling in failed:
            continue
        if holds(value, given):
            here["length"] = entry["length"]
        else:
            here["bounded"] = True
            failed.add(scaling)
    return found
