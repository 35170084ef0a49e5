"""Answers sorted into cells of length and depth, with intervals that account for answers from one row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from configs.rules import tasks
from eval.quality import intervals


@dataclass(frozen=True)
class Answers:
    """Answers of one kind at one length, one entry each.

    Attributes:
        depth: of the needle, 0 (start) .. 1 (end), float [N].
        correct: bool [N]; for generated answers, whether they match token for token at their position.
        loss: nats per token of the answer, float [N]; None for generated answers.
        row: the row of the question, int [N]: answers of one row are not independent.
        found: whether it is anywhere in its row's generated text, bool [N]; None for teacher-forced answers.
        reference: the answer as text, object [N].
        said: all that its row generated, as text, object [N].
        distance: tokens from the nearest copy of its source, int [N] (see `data.retrieval.Rows`).
    """

    depth: np.ndarray
    correct: np.ndarray
    loss: np.ndarray | None = None
    row: np.ndarray | None = None
    found: np.ndarray | None = None
    reference: np.ndarray | None = None
    said: np.ndarray | None = None
    distance: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.depth.shape != self.correct.shape:
            raise ValueError(f"{self.depth.shape} depths for {self.correct.shape} answers")

    @staticmethod
    def joined(parts: Sequence["Answers"]) -> "Answers":
        """Returns the concatenated answers of several batches; all have the same fields."""

        def whole(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else np.concatenate(values)

        return Answers(*map(whole, FIELDS))

    def at(self, chosen: np.ndarray) -> "Answers":
        """Returns the answers selected by a mask."""
        values: list[Any] = [getattr(self, name) for name in FIELDS]
        values = [None if value is None else value[chosen] for value in values]
        return Answers(*values)

    def from_beyond(self, length: int) -> "Answers":
        """Returns the answers whose nearest copy is more than `length` tokens back; all of them if there is none."""
        if self.distance is None or not (self.distance > length).any():
            return self
        return self.at(self.distance > length)

    def nearer(self, length: int) -> "Answers":
        """Returns the answers whose nearest copy is at most `length` tokens back."""
        assert self.distance is not None, "distances are known"
        return self.at(self.distance <= length)

    def near_depth(self, depth: float, depths: np.ndarray) -> "Answers":
        """Returns the answers that are nearest to one depth of a grid."""
        return self.at(nearest(self.depth, depths) == int(np.abs(depths - depth).argmin()))

    @property
    def counts(self) -> dict[str, Any]:
        """The counts of correct answers: see `counts`."""
        return counts(self.correct, self.row)

    @property
    def rows(self) -> dict[str, Any] | None:
        """The counts of rows, of which all answers must be correct; None if rows are unknown."""
        return None if self.row is None else counts(_whole(self.correct, self.row))

    @property
    def shares(self) -> dict[str, Any] | None:
        """The counts of answers found anywhere in the generated text, and of rows with all of them."""
        if self.found is None:
            return None
        rows = None if self.row is None else counts(_whole(self.found, self.row))
        return {**counts(self.found, self.row), "rows": rows}


def distances(answers: Answers) -> dict[str, Any] | None:
    """Returns how many tokens back the nearest copies are: median, quartiles, minimum and maximum, or None."""
    if answers.distance is None or not len(answers.distance):
        return None
    low, middle, high = np.percentile(answers.distance, [25, 50, 75])
    return {
        "median": float(middle),
        "quartiles": [float(low), float(high)],
        "least": int(answers.distance.min()),
        "most": int(answers.distance.max()),
    }


def measures_distance(answers: Answers, length: int, control: Answers | None, chance: float) -> bool | None:
    """Returns whether these answers show retrieval from beyond `length` tokens; None: unknown, or length 0.

    False if none of them is beyond it, or if the local baseline does well: the lower end of its interval is more than
    `tasks.LOCAL` above chance.
    """
    if not length or not len(answers.correct):
        return None
    if answers.distance is not None and not (answers.distance > length).any():
        return False
    if control is None or not len(control.correct):
        return None
    return bool(control.counts["interval"][0] <= chance + tasks.LOCAL)


FIELDS = tuple(one.name for one in fields(Answers))


def _whole(correct: np.ndarray, row: np.ndarray) -> np.ndarray:
    _, at = np.unique(row, return_inverse=True)
    whole = np.ones(at.max(initial=-1) + 1, bool)
    np.logical_and.at(whole, at, correct)
    return whole


def counts(correct: np.ndarray, row: np.ndarray | None = None) -> dict[str, Any]:
    """Returns the number of answers, of correct ones, their share (None if there are none), and its interval.

    `independent` is the number of independent answers they amount to (eval/quality/intervals.py), `interval` Wilson's
    for that number. `few`: cells with so few (`tasks.FEW`) cannot be ranked; at a half the 95% interval is wider than
    about 0.27.
    """
    examples, right = len(correct), int(correct.sum())
    worth = intervals.independent(correct, row)
    share = right / examples if examples else None
    return {
        "examples": examples,
        "correct": right,
        "accuracy": share,
        "interval": intervals.score_interval(share or 0.0, worth),
        "independent": worth,
        "few": worth < tasks.FEW,
    }


def centres(bins: int) -> np.ndarray:
    """Returns the centres of equal bins of the depth."""
    return (np.arange(bins) + 0.5) / bins


def nearest(depth: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Returns the index of the grid depth nearest to each depth, int [N]."""
    return np.abs(depth[:, None] - depths[None, :]).argmin(axis=1)


def by_depth(
    forced: Answers, generated: Answers | None, depths: np.ndarray, merged: Mapping[int, Sequence[float]] | None = None
) -> list[dict[str, Any]]:
    """Returns a cell for each of `depths`: the answers nearest to it, teacher-forced and generated.

    Cells without answers are left out. `merged` has, by index, the other depths of the grid that a cell covers
    ("merged"), if the row is too short to distinguish them.
    """

    results = []
    for index, depth in enumerate(depths):
        here = forced.near_depth(depth, depths)
        given = None if generated is None else generated.near_depth(depth, depths)
        cell = {
            "depth": float(depth),
            **here.counts,
            "distance": distances(here),
            "exact_match": given and given.counts,
            "answers_found": given and given.shares,
        }
        if merged and merged.get(index):
            cell["merged"] = list(merged[index])
        if len(here.correct):
            results.append(cell)
    return results


def overall(forced: Answers, generated: Answers | None) -> dict[str, Any]:
    """Returns the counts over all depths, the mean loss per answer token, and the counts of generated answers."""
    loss = float(forced.loss.mean()) if forced.loss is not None and len(forced.loss) else None
    return {
        **forced.counts,
        "rows": forced.rows,
        "loss": loss,
        "exact_match": None if generated is None else {**generated.counts, "rows": generated.rows},
        "answers_found": None if generated is None else generated.shares,
    }


def records(forced: Answers, generated: Answers | None) -> Iterator[dict[str, Any]]:
    """Yields a record for each answer: its kind, row, depth, whether it is correct, its loss, its text."""
    for how, answers in (("teacher_forced", forced), ("generated", generated)):
        if answers is None:
            continue
        for index, right in enumerate(answers.correct):
            yield {
                "answer": how,
                "row": _at(answers.row, index, int),
                "depth": float(answers.depth[index]),
                "distance": _at(answers.distance, index, int),
                "correct": bool(right),
                "found": _at(answers.found, index, bool),
                "loss": _at(answers.loss, index, float),
                "reference": _at(answers.reference, index, str),
                "said": _at(answers.said, index, str),
            }


def _at(values: np.ndarray | None, index: int, kind: type) -> Any:
    return None if values is None else kind(values[index])
