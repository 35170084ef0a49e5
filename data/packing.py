"""Rows of text: cut from one stream, or whole documents packed with segment ids.

A batch is a dict of arrays [rows, length]: `tokens` and `targets` int32, `weights` float32 (0: not scored), and with
packed documents `positions` int32 (from 0 in each piece) and `segments` int32 (0: padding, else the piece's number).

Row i is a function of (seed, stage, i) alone. Without running state, a run resumes at any row and any worker makes the
same row. Grain's own packing iterators, whose state is the documents read so far, are therefore not used; Grain
shuffles the rows here and prefetches in `pipeline`.
"""

from functools import lru_cache
from typing import Protocol

import numpy as np

from configs.errors import UserError
from data import seeding
from data.parts import Part
from data.streams import Stream

Batch = dict[str, np.ndarray]


class RowSource(Protocol):
    """Infinitely many numbered rows. `rows(first, count)` returns rows first .. first + count - 1 as a batch."""

    def rows(self, first: int, count: int) -> Batch:
        """Returns consecutive rows."""


class _Shuffled:
    """Items 0 .. n - 1 in another order each epoch."""

    def __init__(self, items: int, seed: int, stage: int, *part: int) -> None:
        import grain  # imported here: building and measuring programs does not need it

        self.items = items
        seed = seeding.seed32(seed, seeding.ORDER, stage, *part)
        self._order = grain.MapDataset.range(items).shuffle(seed=seed).repeat(None)

    def take(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns epochs and items at indices first .. first + count - 1, int64 [count] both."""
        places = range(first, first + count)
        items = np.array([self._order[place] for place in places], np.int64)
        return np.arange(first, first + count) // self.items, items


class Contiguous:
    """Windows of length + 1 tokens from the stream taken as a ring, with a different phase each epoch.

    In an epoch every token is a target once, except fewer than `length` tokens at the seam, which moves each epoch.
    Documents follow each other across the separator and attention crosses it: no segments, the fast path.

    `part` numbers the texts of a mixture, so that each has its own order.
    """

    def __init__(self, stream: Stream, length: int, seed: int, stage: int, *part: int) -> None:
        if len(stream) < length + 1:
            raise UserError(
                f"the {stream.split} split has {len(stream)} tokens, fewer than one row of data.length + 1 = "
                f"{length + 1}; use more text or a shorter length"
            )
        self._stream, self._length, self._seed, self._key = stream, length, seed, (stage, *part)
        self._order = _Shuffled(len(stream) // length, seed, stage, *part)

    def rows(self, first: int, count: int) -> Batch:
        """Returns consecutive rows of the shuffled order."""
        epochs, windows = self._order.take(first, count)
        known = range(epochs[0], epochs[-1] + 1)
        phases = np.array([_phase(self._seed, self._key, epoch, len(self._stream)) for epoch in known], np.int64)
        starts = phases[epochs - epochs[0]] + windows * self._length
        places = (starts[:, None] + np.arange(self._length + 1)) % len(self._stream)
        rows = self._stream.tokens[places].astype(np.int32)
        return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "weights": np.ones(rows[:, 1:].shape, np.float32)}


@lru_cache(maxsize=64)
def _phase(seed: int, key: tuple[int, ...], epoch: int, tokens: int) -> int:
    return int(np.random.default_rng(seeding.sequence(seed, seeding.PHASE, *key, epoch)).integers(tokens))


class Segments:
    """Whole documents packed into rows. A document longer than a row is cut; each piece starts at position 0.

    A document of n tokens takes n - 1 places, because the label of its last token would be the next document's first
    token. Each of its tokens after the first is a target once in an epoch. The separator is a document's last token.
    """

    def __init__(self, stream: Stream, length: int, seed: int, stage: int, *part: int) -> None:
        self._packed = Packed(stream, length)
        self._order = _Shuffled(len(self._packed), seed, stage, *part)

    def rows(self, first: int, count: int) -> Batch:
        """Returns consecutive rows of the shuffled order."""
        return self._packed.rows(self._order.take(first, count)[1])


class Packed:
    """The rows of one epoch of packed documents, in a fixed order; `rows(indices)` builds any of them."""

    def __init__(self, stream: Stream | Part, length: int) -> None:
        self._stream, self._length = stream, length
        starts, sizes = _pieces(stream.starts, length)
        if not sizes.size:
            raise UserError(f"the {stream.split} split has no document of two tokens or more; nothing to predict")
        row_of = _best_fit(sizes, length)
        order = np.argsort(row_of, kind="stable")
        self._starts, self._sizes = starts[order], sizes[order]
        self._bounds = np.searchsorted(row_of[order], np.arange(row_of.max() + 2))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def rows(self, indices: np.ndarray) -> Batch:
        """Returns rows by number as a batch with positions and segments."""
        batch = empty(len(indices), self._length, segments=True)
        for row, index in enumerate(indices):
            at = 0
            for number, piece in enumerate(range(self._bounds[index], self._bounds[index + 1]), 1):
                start, size = self._starts[piece], self._sizes[piece]
                here = np.s_[row, at : at + size]
                batch["tokens"][here] = self._stream.tokens[start : start + size]
                batch["targets"][here] = self._stream.tokens[start + 1 : start + size + 1]
                batch["weights"][here] = 1
                batch["positions"][here] = np.arange(size)
                batch["segments"][here] = number
                at += size
        return batch

    def targets(self, index: int) -> np.ndarray:
        """Returns the indices in the stream of one row's targets, int64."""
        pieces = range(self._bounds[index], self._bounds[index + 1])
        return np.concatenate([self._starts[p] + 1 + np.arange(self._sizes[p]) for p in pieces])


def empty(rows: int, length: int, segments: bool) -> Batch:
    """Returns a batch of padding: weight 0 everywhere, segment 0."""
    shape = (rows, length)
    batch = {"tokens": np.zeros(shape, np.int32), "targets": np.zeros(shape, np.int32)}
    batch["weights"] = np.zeros(shape, np.float32)
    if segments:
        batch |= {"positions": np.zeros(shape, np.int32), "segments": np.zeros(shape, np.int32)}
    return batch


def _pieces(starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into pieces of up to `length` targets; returns each piece's first input index, and its size."""
    targets = np.maximum(np.diff(starts) - 1, 0)
    pieces = -(-targets // length)
    document = np.repeat(np.arange(len(targets)), pieces)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    return starts[document] + offset, np.minimum(length, targets[document] - offset)


def _best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Returns a row for each piece: longest first, into the fullest row with enough space; int64 [pieces].

    Rows are then numbered by their first piece, so that neighbours in the text stay close together.
    """
    row_of = np.empty(len(sizes), np.int64)
    full = sizes == capacity
    rows = int(full.sum())
    row_of[full] = np.arange(rows)
    by_space: dict[int, list[int]] = {}
    spaces = 0  # bit s is set if some row has s places left
    for piece in sorted(np.flatnonzero(~full).tolist(), key=lambda p: -sizes[p]):
        size = int(sizes[piece])
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
        else:
            space, row, rows = capacity, rows, rows + 1
        row_of[piece] = row
        if space > size:
            by_space.setdefault(space - size, []).append(row)
            spaces |= 1 << (space - size)
    first = np.full(rows, len(sizes))
    np.minimum.at(first, row_of, np.arange(len(sizes)))
    rank = np.empty(rows, np.int64)
    rank[np.argsort(first)] = np.arange(rows)
    return rank[row_of]
