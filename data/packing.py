"""Rows of tokens out of a stream: cut from it one after the other, or whole documents with segment ids.

A row of length T is tokens [T], each with the next token of its document as its target. Rows are addressed by a number
that runs on over epochs: each epoch has another order, and contiguous rows begin at another phase.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from grain.experimental import index_shuffle

from data import seeding
from data.streams import Stream

Rows = dict[str, np.ndarray]  # tokens, targets int32 [n, T], weights float32 [n, T]; segments, positions int32 [n, T]


class Packing(Protocol):
    """Rows by their numbers."""

    def rows(self, first: int, count: int) -> Rows:
        """Returns rows `first` .. `first + count - 1`."""


class Contiguous:
    """Rows cut from the stream one after the other, over document boundaries; every token has a target."""

    def __init__(self, stream: Stream, length: int, seed: int, stage: int) -> None:
        self.stream, self.length = stream, length
        self.seed, self.stage = seed, stage
        # One row less than fits, so that every phase has as many; a text shorter than that gives one padded row.
        self.per_epoch = max(1, (len(stream) - length) // length)
        self.phases = max(0, min(length - 1, len(stream) - 1 - self.per_epoch * length))

    def starts(self, first: int, count: int) -> np.ndarray:
        """Returns where rows begin in the stream, int64 [count]."""
        numbers = range(first, first + count)
        return np.array([self._start(*divmod(number, self.per_epoch)) for number in numbers], np.int64)

    def _start(self, epoch: int, place: int) -> int:
        order = seeding.seed32(self.seed, seeding.ORDER, self.stage, epoch)
        row = index_shuffle(place, self.per_epoch - 1, order, 4) if self.per_epoch > 1 else 0
        phase = seeding.seed32(self.seed, seeding.PHASE, self.stage, epoch) % (self.phases + 1)
        return phase + row * self.length

    def rows(self, first: int, count: int) -> Rows:
        """Returns rows `first` .. `first + count - 1`."""
        return cut(self.stream.tokens, self.starts(first, count), self.length)


def cut(tokens: np.ndarray, starts: np.ndarray, length: int) -> Rows:
    """Returns rows of `length` beginning at `starts`; what lies behind the end is padding of weight 0."""
    places = starts[:, None] + np.arange(length + 1)
    inside = places < len(tokens)
    found = np.where(inside, tokens[np.minimum(places, len(tokens) - 1)], 0).astype(np.int32)
    return {"tokens": found[:, :-1], "targets": found[:, 1:], "weights": inside[:, 1:].astype(np.float32)}


@dataclass(frozen=True)
class Plan:
    """Which pieces fill which rows: piece i covers stream tokens begin[i] .. end[i] and lies at row[i], column[i]."""

    begin: np.ndarray
    end: np.ndarray
    row: np.ndarray
    column: np.ndarray
    first_piece: np.ndarray  # [rows + 1]


def pieces(stream: Stream, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (begin, end) of every document's pieces; a document longer than a row is cut into several.

    A piece's tokens are begin .. end - 1 and its targets begin + 1 .. end, all inside one document (its separator is
    the last target), so that no label crosses a boundary.
    """
    begins, ends = [], []
    for start, stop in zip(stream.starts[:-1], stream.starts[1:], strict=True):
        at = np.arange(start, max(start, stop - 1), length)
        begins.append(at)
        ends.append(np.minimum(at + length, stop - 1))
    return np.concatenate(begins), np.concatenate(ends)


def plan(begin: np.ndarray, end: np.ndarray, length: int) -> Plan:
    """Fills rows with pieces in their order; a piece that does not fit begins the next row."""
    sizes = (end - begin).tolist()
    row = np.empty(len(sizes), np.int64)
    column = np.empty(len(sizes), np.int64)
    at, used = 0, 0
    for index, size in enumerate(sizes):
        if used + size > length:
            at, used = at + 1, 0
        row[index], column[index] = at, used
        used += size
    first_piece = np.searchsorted(row, np.arange(at + 2))
    return Plan(begin, end, row, column, first_piece)


def fill(stream: Stream, packed: Plan, wanted: np.ndarray, length: int) -> Rows:
    """Returns the rows numbered `wanted` of a plan: segment ids from 1 in each row, positions from 0 in each piece."""
    shape = (len(wanted), length)
    out = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets", "positions", "segments")}
    weights = np.zeros(shape, np.float32)
    for index, row in enumerate(wanted):
        chosen = range(packed.first_piece[row], packed.first_piece[row + 1])
        for number, piece in enumerate(chosen, start=1):
            begin, end, column = packed.begin[piece], packed.end[piece], packed.column[piece]
            here = slice(column, column + end - begin)
            out["tokens"][index, here] = stream.tokens[begin:end]
            out["targets"][index, here] = stream.tokens[begin + 1 : end + 1]
            out["positions"][index, here] = np.arange(end - begin)
            out["segments"][index, here] = number
            weights[index, here] = 1.0
    return {**out, "weights": weights}


class Segments:
    """Whole documents side by side in a row, kept apart by segment ids; each epoch packs them in another order."""

    KEPT = 4  # epochs' plans kept at once

    def __init__(self, stream: Stream, length: int, seed: int, stage: int) -> None:
        self.stream, self.length = stream, length
        self.seed, self.stage = seed, stage
        self.begin, self.end = pieces(stream, length)
        self.plans: OrderedDict[int, Plan] = OrderedDict()
        self.ends: list[int] = []  # rows up to the end of each epoch planned so far

    def _plan(self, epoch: int) -> Plan:
        if epoch not in self.plans:
            key = seeding.philox_key(self.seed, seeding.ORDER, self.stage, epoch)
            order = np.random.Generator(np.random.Philox(key)).permutation(len(self.begin))
            self.plans[epoch] = plan(self.begin[order], self.end[order], self.length)
            while len(self.plans) > self.KEPT:
                self.plans.popitem(last=False)
        return self.plans[epoch]

    def _place(self, number: int) -> tuple[int, int]:
        """Returns (epoch, row in it); how many rows an epoch has depends on its order, so earlier ones are planned."""
        while not self.ends or number >= self.ends[-1]:
            rows = len(self._plan(len(self.ends)).first_piece) - 1
            self.ends.append((self.ends[-1] if self.ends else 0) + rows)
        epoch = int(np.searchsorted(self.ends, number, side="right"))
        return epoch, number - (self.ends[epoch - 1] if epoch else 0)

    def rows(self, first: int, count: int) -> Rows:
        """Returns rows `first` .. `first + count - 1`."""
        places = [self._place(number) for number in range(first, first + count)]
        parts = [fill(self.stream, self._plan(epoch), np.array([row]), self.length) for epoch, row in places]
        if not parts:
            return fill(self.stream, self._plan(0), np.zeros(0, np.int64), self.length)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def packing(kind: str, stream: Stream, length: int, seed: int, stage: int) -> Packing:
    """Returns the packing that `config.data.packing` names."""
    return (Segments if kind == "segments" else Contiguous)(stream, length, seed, stage)
