"""Multi-query associative recall as Zoology defines it (2312.04927, section 4): questions at gaps of a power law.

All m pairs come first. What follows is places of two tokens each, and each key is asked once, in place g with
p ~ g^(a - 1), no two in one; a = 0.01 puts most questions near the pairs. Keys are distinct and from the lower half of
the vocabulary (its token 0 is the blank), values distinct and from the upper half.

Differences from Zoology: a row is text that a language model may read, so that the answer stands after its question,
where Zoology has filler; random filler (`data.mqar.filler`) leaves out the row's keys and values, so that nothing but
the pairs tells an answer; rows are fresh at every step. `data/mqar.py` is the same task without gaps.
"""

from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.rows import Rows, same_spans
from data.retrieval.tokens import excluding, numbers


@dataclass(frozen=True)
class MqarGaps:
    """See the module; `needles` is the number of pairs."""

    needles: int
    vocab_size: int
    power: float = 0.01
    random_filler: bool = False
    name: str = field(default="mqar_gaps", init=False)
    all_depths: bool = field(default=True, init=False)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`."""
        return 4 * (needles or self.needles)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return 1 / (self.vocab_size // 2)

    def rows(
        self,
        draw: Draw,
        first: int,
        count: int,
        *,
        length: int,
        needles: int | None = None,
        depth: float | None = None,
        vary: bool = False,
    ) -> Rows:
        """See `rows.Task`. Answers are in the order of their pairs; depths are in pairs, i / m for pair i."""
        pairs = needles or self.needles
        if length < self.shortest(pairs):
            raise UserError(f"a row of {length} tokens is too short for mqar_gaps: {pairs} pairs need {4 * pairs}")
        m = numbers(draw.key(self.name), first, count, pairs, vary)
        keys, values = self.pairs_of(draw, first, m, pairs)
        places = places_of(draw.key(self.name, 1), first, count, pairs, (length - 2 * pairs) // 2, self.power)
        # A row of fewer pairs has its questions earlier; its last places stay filler.
        columns = 2 * m[:, None] + 2 * places
        valid = np.arange(pairs) < m[:, None]
        tokens = self.filler(draw, first, length, np.where(valid, keys, -1), np.where(valid, values, -1))
        rows = np.arange(count)[:, None]
        for column, what in (
            (2 * np.arange(pairs)[None, :], keys),
            (2 * np.arange(pairs)[None, :] + 1, values),
            (columns, keys),
            (columns + 1, values),
        ):
            at = np.where(valid, column, length)  # what does not count goes into a column that is cut off
            tokens[rows, at] = what
        tokens = np.ascontiguousarray(tokens[:, :length])
        spans = same_spans(columns + 1, valid)
        scored = np.zeros((count, length + 1), bool)
        scored[rows, np.where(valid, columns + 1, length)] = True
        last = np.where(valid, columns + 1, 0).max(axis=1).astype(np.int32)
        message = same_spans(np.broadcast_to(2 * np.arange(pairs), (count, pairs)), valid, 2)
        return Rows(
            tokens=tokens,
            spans=spans,
            depths=np.where(valid, np.arange(pairs) / m[:, None], np.nan),
            needles=message,
            scored=scored[:, :length],
            prompts=last,
            ends=last + 1,
            pairs=m.astype(np.int32),
            references=tuple(tuple(map(str, row[:n])) for row, n in zip(values.tolist(), m.tolist(), strict=True)),
            distances=np.where(valid, columns - 2 * np.arange(pairs), 0).astype(np.int32),
        )

    def pairs_of(self, draw: Draw, first: int, m: np.ndarray, pairs: int) -> Arrays:
        """Returns keys and values, int64 [n, pairs] both, on the side of the split that is wanted."""
        half, key = self.vocab_size // 2, draw.key(self.name)

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, 2 * half - 1, attempt)
            keys = 1 + seeding.smallest(words[:, : half - 1], pairs)
            return keys, half + seeding.smallest(words[:, half - 1 : 2 * half - 1], pairs)

        def content(drawn: Arrays) -> np.ndarray:
            hashes = seeding.mix((drawn[0] * self.vocab_size + drawn[1]).astype(np.uint64))
            hashes[np.arange(pairs) >= m[:, None]] = 0
            return hashes.sum(axis=1, dtype=np.uint64)

        return settled(make, content, len(m), draw.held_out)

    def filler(self, draw: Draw, first: int, length: int, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Returns int32 [n, length + 1]: blanks, or tokens that are in none of the row's pairs (-1: no pair)."""
        count = len(keys)
        if not self.random_filler:
            return np.zeros((count, length + 1), np.int32)
        return excluding(draw.key(self.name, 2), first, length + 1, np.concatenate([keys, values], 1), self.vocab_size)


def places_of(key: np.ndarray, first: int, count: int, pairs: int, places: int, power: float) -> np.ndarray:
    """Returns each pair's place, int64 [n, pairs], from 0: drawn one after the other without putting back.

    Place g has a weight of g^(power - 1). It is an exponential race: the `pairs` smallest of Exp(1) / weight, in order
    (Efraimidis and Spirakis 2006).
    """
    words = seeding.random_words(key, first, count, places)[:, :places]
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    race = -np.log(uniform) * np.arange(1, places + 1) ** (1 - power)
    return np.argsort(race, axis=1, kind="stable")[:, :pairs]
