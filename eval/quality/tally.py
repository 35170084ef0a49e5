"""Sums token losses: by row for intervals, by position for the curve, in float64 on the host."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.quality import intervals

MIN_DOCUMENTS = 8  # with fewer the spread is hardly known
MOST_PIECES = 1000  # maximum pieces of text in eval/loss.json


def position_bins(length: int) -> list[tuple[int, int]]:
    """Returns half-open bins [start, end) that cover 0 .. length: octaves, from 16 on two bins per octave."""
    edges = [0, 1, 2, 4, 8, 16, 24]
    while edges[-1] < length:
        edges.append(2 * edges[-2])
    inside = [edge for edge in edges if edge < length]
    return list(zip(inside, [*inside[1:], length], strict=True))


class Tally:
    """Losses of rows of up to `length` tokens, summed in the text's order."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.position_loss = np.zeros(length)
        self.position_tokens = np.zeros(length)
        self.row_loss: list[np.ndarray] = []
        self.row_tokens: list[np.ndarray] = []
        self.document_loss = np.zeros(0)
        self.document_tokens = np.zeros(0)

    def add(
        self,
        losses_BT: np.ndarray,
        weights_BT: np.ndarray,
        positions_BT: np.ndarray | None = None,
        documents_BT: np.ndarray | None = None,
    ) -> None:
        """Adds a batch: losses in nats, weights (0: not scored), positions in the document (None: columns).

        `documents_BT` are the scored tokens' documents, 0 or more, if known.
        """
        weights_BT = np.asarray(weights_BT, np.float64)
        # A masked loss may be anything, including NaN, and must not count.
        weighted_BT = np.where(weights_BT > 0, np.asarray(losses_BT, np.float64), 0.0) * weights_BT
        if positions_BT is None:
            self.position_loss[: weighted_BT.shape[1]] += weighted_BT.sum(0)
            self.position_tokens[: weighted_BT.shape[1]] += weights_BT.sum(0)
        else:
            positions = np.asarray(positions_BT).ravel()
            self.position_loss += np.bincount(positions, weighted_BT.ravel(), self.length)
            self.position_tokens += np.bincount(positions, weights_BT.ravel(), self.length)
        if documents_BT is not None:
            self._add_documents(documents_BT, weighted_BT, weights_BT)
        self.row_loss.append(weighted_BT.sum(1))
        self.row_tokens.append(weights_BT.sum(1))

    def _add_documents(self, documents_BT: np.ndarray, weighted_BT: np.ndarray, weights_BT: np.ndarray) -> None:
        scored_BT = documents_BT >= 0
        number = max(len(self.document_loss), int(documents_BT.max(initial=-1)) + 1)
        self.document_loss = np.pad(self.document_loss, (0, number - len(self.document_loss)))
        self.document_tokens = np.pad(self.document_tokens, (0, number - len(self.document_tokens)))
        result = documents_BT[scored_BT]
        self.document_loss += np.bincount(result, weighted_BT[scored_BT], number)
        self.document_tokens += np.bincount(result, weights_BT[scored_BT], number)

    def text(self) -> dict[str, Any] | None:
        """Returns the loss by piece of text, to compare two runs piece by piece; None if nothing is scored.

        `loss` is in nats, summed over each piece, `tokens` how many it scores. Pieces are documents, if there are at
        least MIN_DOCUMENTS, combining consecutive ones if there are more than MOST_PIECES; else blocks of consecutive
        rows, as for the interval.
        """
        if not self.tokens:
            return None
        unit, sums, counts = "documents", self.document_loss, self.document_tokens
        if np.count_nonzero(counts) < MIN_DOCUMENTS:
            unit, sums, counts = "blocks", np.concatenate(self.row_loss), np.concatenate(self.row_tokens)
        size = max(intervals.BLOCK_TOKENS, -(-int(counts.sum()) // MOST_PIECES))
        if unit == "blocks" or np.count_nonzero(counts) > MOST_PIECES:
            sums, counts = intervals.blocks(sums, counts, size)
        kept = counts > 0
        tokens = [int(one) if one == int(one) else float(one) for one in counts[kept]]
        return {"unit": unit, "loss": [round(float(one), 4) for one in sums[kept]], "tokens": tokens}

    @property
    def tokens(self) -> float:
        """The scored weight: the number of tokens if weights are 0 and 1."""
        return float(self.position_tokens.sum())

    @property
    def loss(self) -> float | None:
        """Nats per token; None if nothing was scored."""
        # Rows, not positions, so that the order of addition does not depend on the batch size.
        return float(math.fsum(np.concatenate(self.row_loss)) / self.tokens) if self.tokens else None

    def interval(self, resamples: int) -> list[float] | None:
        """Returns the 95% interval of the loss by the block bootstrap over consecutive rows."""
        if not self.tokens:
            return None
        sums, counts = intervals.blocks(np.concatenate(self.row_loss), np.concatenate(self.row_tokens))
        return intervals.block_bootstrap(sums, counts, resamples=resamples)

    def by_position(self) -> dict[str, list[Any]]:
        """Returns the loss in bins of positions: {start, end (exclusive), loss, tokens}, without empty bins."""
        rows = []
        for start, end in position_bins(self.length):
            tokens = self.position_tokens[start:end].sum()
            if tokens:
                rows.append((start, end, float(self.position_loss[start:end].sum() / tokens), round(tokens)))
        names = ("start", "end", "loss", "tokens")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def bits_per_byte(loss: float, tokens: float, count: int) -> float:
    """Returns loss (nats per token) over `tokens` tokens that stand for `count` bytes, in bits per byte."""
    return loss * tokens / (math.log(2) * count)


def scale_interval(interval: Sequence[float] | None, by: float) -> list[float] | None:
    """Returns an interval in other units."""
    return None if interval is None else [bound * by for bound in interval]
