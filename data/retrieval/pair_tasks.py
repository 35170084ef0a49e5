"""The base of tasks of key-value pairs: pairs are stated first, and questions follow at gaps of a power law.

A key has K tokens and a value one. A pair takes K + 1 tokens where it is stated, and as many where it is asked.
"""

from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import Draw
from data.retrieval.rows import Rows, same_spans
from data.retrieval.tokens import excluding


@dataclass(frozen=True)
class Pairs:
    """The pairs of n rows, with P pairs in the longest row.

    Attributes:
        tokens: int64 [n, S], the stated tokens; -1 behind their end.
        keys: int64 [n, P, K].
        values: int64 [n, P], the correct ones.
        ends: int64 [n, P], the column of the last token of the correct pair.
        number: int64 [n], the pairs of each row; later entries of the other arrays are unused.
    """

    tokens: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    ends: np.ndarray
    number: np.ndarray

    @property
    def width(self) -> int:
        """Tokens of a question and its answer."""
        return self.keys.shape[2] + 1

    @property
    def size(self) -> np.ndarray:
        """Number of tokens that each row states, int64 [n]."""
        return (self.tokens >= 0).sum(axis=1)

    @property
    def valid(self) -> np.ndarray:
        """Which pairs are used, bool [n, P]."""
        return np.arange(self.values.shape[1]) < self.number[:, None]

    @property
    def starts(self) -> np.ndarray:
        """The column of the first token of the correct pair, int64 [n, P]."""
        return self.ends + 1 - self.width

    def questions(self, pairs: np.ndarray) -> np.ndarray:
        """Returns the questions and answers of pairs by number, int64 [n, A] to [n, A, K + 1]."""
        keys = np.take_along_axis(self.keys, pairs[:, :, None], axis=1)
        values = np.take_along_axis(self.values, pairs, axis=1)
        return np.concatenate([keys, values[:, :, None]], axis=2)


@dataclass(frozen=True)
class PairTask:
    """A task of pairs; `needles` is their number. Each kind defines what its rows state."""

    needles: int
    vocab_size: int
    name: str = field(default="", init=False)
    all_depths: bool = field(default=True, init=False)

    def pairs_of(self, draw: Draw, first: int, count: int, pairs: int, vary: bool) -> Pairs:
        """Returns the rows' pairs, on the requested side of the split."""
        raise NotImplementedError

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`: each pair is stated and asked."""
        return 4 * (needles or self.needles)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`: values are the upper half of the vocabulary."""
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
        """See `rows.Task`. Answers are in the order of their pairs; a depth is the pair's index over their number."""
        pairs = needles or self.needles
        if length < self.shortest(pairs):
            least = self.shortest(pairs)
            raise UserError(f"a row of {length} tokens is too short for {self.name}: {pairs} pairs need {least}")
        return self.laid(draw, first, count, length, pairs, vary)

    def laid(self, draw: Draw, first: int, count: int, length: int, pairs: int, vary: bool) -> Rows:
        """Returns rows whose length was checked; see `rows`."""
        raise NotImplementedError

    def far_filler(self, draw: Draw, part: int, first: int, length: int, stated: Pairs) -> np.ndarray:
        """Returns filler between pairs and questions, int32 [n, length + 1], without tokens of the pairs."""
        raise NotImplementedError


@dataclass(frozen=True)
class GapTask(PairTask):
    """Each key is asked once, in slot g with p ~ g^(power - 1), at most one per slot (Zoology, 2312.04927, section 4).

    Slots have K + 1 tokens and follow the pairs; a power of 0.01 puts most questions near the pairs, 1 anywhere.
    Between questions are blanks (token 0), or random tokens that are in none of the row's pairs.
    """

    power: float = 0.01
    random_filler: bool = False

    def laid(self, draw: Draw, first: int, count: int, length: int, pairs: int, vary: bool) -> Rows:
        """See `rows`. A row with fewer pairs has its questions earlier; its last slots stay filler."""
        stated = self.pairs_of(draw, first, count, pairs, vary)
        width, size, valid = stated.width, stated.size, stated.valid
        most = stated.values.shape[1]
        places = (length - self._size(pairs)) // width
        columns = size[:, None] + width * places_of(draw.key(self.name, 1), first, count, most, places, self.power)
        tokens = self.filler(draw, 2, first, length, stated)
        rows = np.arange(count)[:, None]
        # Unused entries go into a column that is cut off.
        tokens[rows, np.where(stated.tokens >= 0, np.arange(stated.tokens.shape[1]), length)] = stated.tokens
        asked = stated.questions(np.broadcast_to(np.arange(most), valid.shape))
        for offset in range(width):
            tokens[rows, np.where(valid, columns + offset, length)] = asked[:, :, offset]
        pair = np.broadcast_to(np.arange(most), valid.shape)
        return pair_rows(np.ascontiguousarray(tokens[:, :length]), stated, columns, pair, valid)

    def _size(self, pairs: int) -> int:
        """Returns the tokens that a row with `pairs` pairs states."""
        return 2 * pairs

    def filler(self, draw: Draw, part: int, first: int, length: int, stated: Pairs) -> np.ndarray:
        """Returns int32 [n, length + 1]: blanks, or tokens that are in none of the row's pairs."""
        if not self.random_filler:
            return np.zeros((len(stated.number), length + 1), np.int32)
        return excluding(draw.key(self.name, part), first, length + 1, distinct(stated.tokens), self.vocab_size)

    def far_filler(self, draw: Draw, part: int, first: int, length: int, stated: Pairs) -> np.ndarray:
        """See `PairTask`."""
        return self.filler(draw, 2, first, length, stated)


def distinct(tokens: np.ndarray) -> np.ndarray:
    """Returns each row's tokens without repeats, int64 [n, S]; -1 in place of repeated ones."""
    result = np.sort(tokens, axis=1)
    result[:, 1:][result[:, 1:] == result[:, :-1]] = -1
    return result


def pair_rows(tokens: np.ndarray, stated: Pairs, columns: np.ndarray, requested: np.ndarray, valid: np.ndarray) -> Rows:
    """Returns rows of tokens int [n, length], whose pairs `requested` [n, A] are asked at `columns` [n, A]."""
    count, length = tokens.shape
    answers = columns + stated.width - 1
    scored = np.zeros((count, length + 1), bool)
    scored[np.arange(count)[:, None], np.where(valid, answers, length)] = True
    last = np.where(valid, answers, 0).max(axis=1).astype(np.int32)
    values = np.take_along_axis(tokens, np.where(valid, answers, 0), axis=1).tolist()
    starts, ends = (np.take_along_axis(x, requested, axis=1) for x in (stated.starts, stated.ends))
    return Rows(
        tokens=np.ascontiguousarray(tokens.astype(np.int32)),
        spans=same_spans(answers, valid),
        depths=np.where(valid, starts / stated.size[:, None], np.nan),
        needles=same_spans(stated.starts, stated.valid, stated.width),
        scored=scored[:, :length],
        prompts=last,
        ends=last + 1,
        pairs=stated.number.astype(np.int32),
        references=tuple(
            tuple(str(value) for value, real in zip(row, there, strict=True) if real)
            for row, there in zip(values, valid.tolist(), strict=True)
        ),
        distances=np.where(valid, answers - ends, 0).astype(np.int32),
    )


def plain(keys: np.ndarray, values: np.ndarray, number: np.ndarray) -> Pairs:
    """Returns pairs of keys and values, int64 [n, P] both, stated once in their order: key value key value ..."""
    count, pairs = keys.shape
    tokens = np.stack([keys, values], axis=2).reshape(count, 2 * pairs)
    tokens = np.where(np.arange(2 * pairs) < 2 * number[:, None], tokens, -1)
    ends = np.broadcast_to(2 * np.arange(pairs) + 1, keys.shape)
    return Pairs(tokens, keys[:, :, None], values, ends, number)


def places_of(key: np.ndarray, first: int, count: int, pairs: int, places: int, power: float) -> np.ndarray:
    """Returns each pair's slot, int64 [n, pairs], from 0: drawn without replacement.

    Slot g has the weight g^(power - 1). It is an exponential race: the `pairs` smallest of Exp(1) / weight, in order
    (Efraimidis and Spirakis 2006).
    """
    words = seeding.random_words(key, first, count, places)[:, :places]
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    race = -np.log(uniform) * np.arange(1, places + 1) ** (1 - power)
    return np.argsort(race, axis=1, kind="stable")[:, :pairs]


def pair_hash(*parts: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Returns an order-free hash of each row's pairs, uint64 [n].

    Args:
        parts: int64 [n, P] each, numbers that together identify a pair.
        valid: bool [n, P], the pairs that are used.
    """
    hashes = np.zeros(valid.shape, np.uint64)
    for part in parts:
        hashes = seeding.mix(hashes + part.astype(np.uint64) + np.uint64(1))
    return np.where(valid, hashes, 0).sum(axis=1, dtype=np.uint64)
