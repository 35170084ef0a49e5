"""A task's rows as batches: new ones for training, held-out ones for a validation loss."""

from collections.abc import Iterator

import numpy as np

from configs.errors import UserError
from data.packing import Batch
from data.retrieval.draws import Draw
from data.retrieval.rows import Task


class TaskSource:
    """Training rows of one stage; row i is a function of (seed, stage, i) and the setting alone.

    Args:
        task: from `make`.
        draw: seed and stage.
        length: T, tokens per row of the batch.
        needles: maximum needles (pairs, hops, tokens) per row; drawn uniformly from 1 .. needles.
        answer_weight: loss weight of the answers' tokens.
        text_weight: loss weight of all other tokens.
        segments: also return `positions` and `segments`, for batches with packed documents; a row is one segment.

    Raises:
        UserError: the length may be too short for a row.
    """

    def __init__(
        self,
        task: Task,
        draw: Draw,
        *,
        length: int,
        needles: int,
        answer_weight: float = 1.0,
        text_weight: float = 0.0,
        segments: bool = False,
    ) -> None:
        short = task.shortest(needles) - 1
        if length < short:
            advice = "" if getattr(task, "short", True) else ", or set data.retrieval.form = 'short'"
            raise UserError(
                f"data.weights.{task.name}: rows of {length} tokens are too short for its needles and question, which "
                f"take up to {short}; raise the length{advice}"
            )
        self._task, self._draw, self._length, self._needles = task, draw, length, needles
        self._weights = (answer_weight, text_weight)
        self._segments = segments

    def rows(self, first: int, count: int) -> Batch:
        """Returns consecutive rows as a batch [count, T]."""
        result = self._task.rows(
            self._draw, first, count, length=self._length + 1, needles=self._needles, vary=True
        ).batch(*self._weights)
        if self._segments:
            shape = (count, self._length)
            result["positions"] = np.broadcast_to(np.arange(self._length, dtype=np.int32), shape).copy()
            result["segments"] = np.ones(shape, np.int32)
        return result


def evaluation(
    task: Task, seed: int, *, length: int, batch_size: int, rows: int, vary: bool = True, beyond: int = 0
) -> Iterator[Batch]:
    """Yields `rows` held-out rows in batches that score only answers; the last batch is padded with weight 0.

    Rows do not depend on the batch size.

    Args:
        task: from `make`.
        seed: the run's.
        length: T.
        batch_size: B.
        rows: how many.
        vary: draw the number of needles as in training; else the task's own.
        beyond: above 0, only answers whose nearest copy is more than this many tokens back count.
    """
    for first in range(0, rows, batch_size):
        count = min(batch_size, rows - first)
        drawn = task.rows(Draw(seed, held_out=True), first, count, length=length + 1, vary=vary)
        result = drawn.batch()
        if beyond:
            column = np.arange(length + 1)
            inside: np.ndarray = (column >= drawn.spans[:, :, :1]) & (column < drawn.spans[:, :, 1:])  # [n, A, T + 1]
            inside &= (drawn.distances > beyond)[:, :, None]
            result["weights"] = np.any(inside, axis=1)[:, 1:].astype(np.float32)
        fill = [(0, batch_size - count), (0, 0)]
        yield {name: np.pad(values, fill) for name, values in result.items()}
