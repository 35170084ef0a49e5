"""Answers sorted into cells of length and depth, with Wilson intervals."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval import stats

FEW = 50  # examples; 10 to 20 trials a cell tell nothing of its neighbours


@dataclass(frozen=True)
class Answers:
    """Answers of one kind at one length, an entry each."""

    depth: np.ndarray  # where the needle lies, 0 (start) .. 1 (end), float [N]
    correct: np.ndarray  # bool [N]
    loss: np.ndarray | None = None  # nats a token of the answer, float [N]; None for generated answers
    row: np.ndarray | None = None  # the row that asked, int [N]: answers of one row stand or fall together

    def __post_init__(self) -> None:
        if self.depth.shape != self.correct.shape:
            raise ValueError(f"{self.depth.shape} depths for {self.correct.shape} answers")

    def at(self, chosen: np.ndarray) -> "Answers":
        """Returns the answers where a mask is set."""
        loss, row = (None if x is None else x[chosen] for x in (self.loss, self.row))
        return Answers(self.depth[chosen], self.correct[chosen], loss, row)

    @property
    def counts(self) -> dict[str, Any]:
        """How many, how many correct, their share (None where there are none), its interval, and whether too few.

        `few` says that cells of so many examples cannot be ranked: at a share of a half the 95% interval is wider than
        some 0.27.
        """
        return _counts(self.correct)

    @property
    def rows(self) -> dict[str, Any] | None:
        """The same counts of rows, of which all answers must be correct; None where rows are not known."""
        if self.row is None:
            return None
        _, at = np.unique(self.row, return_inverse=True)
        whole = np.ones(at.max(initial=-1) + 1, bool)
        np.logical_and.at(whole, at, self.correct)
        return _counts(whole)


def _counts(correct: np.ndarray) -> dict[str, Any]:
    examples, right = len(correct), int(correct.sum())
    return {
        "examples": examples,
        "correct": right,
        "accuracy": right / examples if examples else None,
        "interval": stats.wilson(right, examples),
        "few": examples < FEW,
    }


def centres(bins: int) -> np.ndarray:
    """Returns the centres of equal bins of the depth."""
    return (np.arange(bins) + 0.5) / bins


def by_depth(forced: Answers, generated: Answers | None, depths: np.ndarray) -> list[dict[str, Any]]:
    """Returns a cell for each of `depths`: the answers that are nearest to it, teacher-forced and generated.

    A cell without answers is left out.
    """

    def within(answers: Answers, index: int) -> Answers:
        return answers.at(np.abs(answers.depth[:, None] - depths[None, :]).argmin(axis=1) == index)

    cells = []
    for index, depth in enumerate(depths):
        here = within(forced, index)
        exact = None if generated is None else within(generated, index)
        if len(here.correct):
            cells.append({"depth": float(depth), **here.counts, "exact_match": exact and exact.counts})
    return cells


def overall(forced: Answers, generated: Answers | None) -> dict[str, Any]:
    """Returns the counts over all depths, the mean loss of an answer's token, and those of generated answers."""
    loss = float(forced.loss.mean()) if forced.loss is not None and len(forced.loss) else None
    exact = None if generated is None else {**generated.counts, "rows": generated.rows}
    return {**forced.counts, "rows": forced.rows, "loss": loss, "exact_match": exact}


def records(forced: Answers, generated: Answers | None) -> Iterator[dict[str, Any]]:
    """Yields a record for each answer: how it was given, its row, depth, whether it is correct, its loss."""
    for how, answers in (("teacher_forced", forced), ("generated", generated)):
        if answers is None:
            continue
        for index, right in enumerate(answers.correct):
            row = None if answers.row is None else int(answers.row[index])
            loss = None if answers.loss is None else float(answers.loss[index])
            depth = float(answers.depth[index])
            yield {"answer": how, "row": row, "depth": depth, "correct": bool(right), "loss": loss}
