"""Adds up token losses: by row for intervals, by position for the curve, in float64 on the host."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.quality import intervals


def position_bins(length: int) -> list[tuple[int, int]]:
    """Returns half-open bins [start, end) that cover 0 .. length: octaves, from 16 on two bins an octave."""
    edges = [0, 1, 2, 4, 8, 16, 24]
    while edges[-1] < length:
        edges.append(2 * edges[-2])
    inside = [edge for edge in edges if edge < length]
    return list(zip(inside, [*inside[1:], length], strict=True))


class Tally:
    """Losses of rows of up to `length` tokens, added in the text's order."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.position_loss = np.zeros(length)
        self.position_tokens = np.zeros(length)
        self.row_loss: list[np.ndarray] = []
        self.row_tokens: list[np.ndarray] = []

    def add(self, losses_BT: np.ndarray, weights_BT: np.ndarray, positions_BT: np.ndarray | None = None) -> None:
        """Adds a batch: losses in nats, weights (0: not scored), positions in the document (None: columns)."""
        weights_BT = np.asarray(weights_BT, np.float64)
        # A masked loss may be anything, NaN included, and must not count.
        weighted_BT = np.where(weights_BT > 0, np.asarray(losses_BT, np.float64), 0.0) * weights_BT
        if positions_BT is None:
            self.position_loss[: weighted_BT.shape[1]] += weighted_BT.sum(0)
            self.position_tokens[: weighted_BT.shape[1]] += weights_BT.sum(0)
        else:
            positions = np.asarray(positions_BT).ravel()
            self.position_loss += np.bincount(positions, weighted_BT.ravel(), self.length)
            self.position_tokens += np.bincount(positions, weights_BT.ravel(), self.length)
        self.row_loss.append(weighted_BT.sum(1))
        self.row_tokens.append(weights_BT.sum(1))

    @property
    def tokens(self) -> float:
        """How much weight was scored: tokens, where weights are 0 and 1."""
        return float(self.position_tokens.sum())

    @property
    def loss(self) -> float | None:
        """Nats a token; None where nothing was scored."""
        # Rows, not positions, so that the order of addition does not depend on the batch size.
        return float(math.fsum(np.concatenate(self.row_loss)) / self.tokens) if self.tokens else None

    def interval(self, resamples: int) -> list[float] | None:
        """Returns the 95% interval of the loss by the block bootstrap over consecutive rows."""
        if not self.tokens:
            return None
        sums, counts = intervals.blocks(np.concatenate(self.row_loss), np.concatenate(self.row_tokens))
        return intervals.block_bootstrap(sums, counts, resamples=resamples)

    def by_position(self) -> dict[str, list[Any]]:
        """Returns the loss in bins of positions: {start, end (exclusive), loss, tokens}; empty bins are left out."""
        rows = []
        for start, end in position_bins(self.length):
            tokens = self.position_tokens[start:end].sum()
            if tokens:
                rows.append((start, end, float(self.position_loss[start:end].sum() / tokens), round(tokens)))
        names = ("start", "end", "loss", "tokens")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def bits_per_byte(loss: float, tokens: float, count: int) -> float:
    """Returns loss (nats a token) over `tokens` tokens that stand for `count` bytes, in bits a byte."""
    return loss * tokens / (math.log(2) * count)


def scale_interval(interval: Sequence[float] | None, by: float) -> list[float] | None:
    """Returns an interval in other units."""
    return None if interval is None else [bound * by for bound in interval]
