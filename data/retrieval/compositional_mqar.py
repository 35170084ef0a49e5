"""Compositional MQAR (Zoology's `compositional_mqar`): keys are two tokens, and neither alone determines the value.

m = g^2 pairs are stated, `first second value` each: all combinations of g first with g second keys, in random order.
Then each pair is asked once, at the gaps of `mqar_gaps`, by its two keys. First keys are from the first third of the
vocabulary (its token 0 is the blank), second keys from the second, values from the rest, all distinct. With one pair a
row there is nothing to compose.

Differences from Zoology: answers follow their questions, and random filler contains none of the row's tokens, as in
`mqar_gaps`; training draws g uniformly from 1 to the maximum.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.pair_tasks import GapTask, Pairs, pair_hash
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.tokens import numbers


@dataclass(frozen=True)
class CompositionalMqar(GapTask):
    """See the module; `needles` is the number of pairs, a square."""

    name: str = field(default="compositional_mqar", init=False)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`."""
        return 6 * (needles or self.needles)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`: values are the last third of the vocabulary."""
        return 1 / (self.vocab_size - 2 * (self.vocab_size // 3))

    def _size(self, pairs: int) -> int:
        return 3 * pairs

    def pairs_of(self, draw: Draw, first: int, count: int, pairs: int, vary: bool) -> Pairs:
        """See `PairTask`.

        Raises:
            UserError: the number of pairs is not a square.
        """
        side = math.isqrt(pairs)
        if side * side != pairs:
            raise UserError(f"compositional_mqar: {pairs} pairs are not a square (1, 4, 9, ...)")
        third, key = self.vocab_size // 3, draw.key(self.name)
        sides = numbers(key, first, count, side, vary)
        valid = np.arange(pairs) < (sides**2)[:, None]
        cell = np.arange(pairs) // sides[:, None], np.arange(pairs) % sides[:, None]  # of the grid, by pair

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, self.vocab_size - 1 + pairs, attempt)
            ones = 1 + seeding.smallest(words[:, : third - 1], side)
            twos = third + seeding.smallest(words[:, third - 1 : 2 * third - 1], side)
            values = 2 * third + seeding.smallest(words[:, 2 * third - 1 : self.vocab_size - 1], pairs)
            ranks = words[:, self.vocab_size - 1 : self.vocab_size - 1 + pairs].copy()
            there = valid[low : low + rows]
            ranks[~there] = np.iinfo(np.uint64).max
            order = np.argsort(ranks, axis=1, kind="stable")
            row, column = (np.take_along_axis(np.minimum(x[low : low + rows], side - 1), order, 1) for x in cell)
            return np.take_along_axis(ones, row, axis=1), np.take_along_axis(twos, column, axis=1), values

        def content(drawn: Arrays) -> np.ndarray:
            return pair_hash(*drawn, valid=valid)

        ones, twos, values = settled(make, content, count, draw.held_out)
        tokens = np.stack([ones, twos, values], axis=2).reshape(count, 3 * pairs)
        tokens = np.where(np.repeat(valid, 3, axis=1), tokens, -1)
        ends = np.broadcast_to(3 * np.arange(pairs) + 2, valid.shape)
        return Pairs(tokens, np.stack([ones, twos], axis=2), values, ends, sides**2)


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    mqar = setting.mqar
    return CompositionalMqar(mqar.pairs, mqar.vocab_size, mqar.power, mqar.filler == "random")
