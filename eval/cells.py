"""Answers sorted into cells of length and depth, with Wilson intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from eval import stats


@dataclass(frozen=True)
class Answers:
    """Answers of one kind at one length, an entry each."""

    depth: np.ndarray  # where the needle lies, 0 (start) .. 1 (end), float [N]
    correct: np.ndarray  # bool [N]
    loss: np.ndarray | None = None  # nats a token of the answer, float [N]; None for generated answers

    def __post_init__(self) -> None:
        if self.depth.shape != self.correct.shape:
            raise ValueError(f"{self.depth.shape} depths for {self.correct.shape} answers")

    def at(self, chosen: np.ndarray) -> "Answers":
        """Returns the answers where a mask is set."""
        return Answers(self.depth[chosen], self.correct[chosen], None if self.loss is None else self.loss[chosen])

    @property
    def counts(self) -> dict[str, Any]:
        """How many, how many correct, their share (None where there are none) and its interval."""
        examples, correct = len(self.correct), int(self.correct.sum())
        return {
            "examples": examples,
            "correct": correct,
            "accuracy": correct / examples if examples else None,
            "interval": stats.wilson(correct, examples),
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
    return {**forced.counts, "loss": loss, "exact_match": None if generated is None else generated.counts}
