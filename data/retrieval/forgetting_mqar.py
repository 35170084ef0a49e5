"""Forgetting MQAR (Zoology's `forgetting_mqar`): some keys are stated again with another value; the last one counts.

m pairs are stated, then ceil(m / 2) of their keys again, in random order, each with a new value; Zoology's own settings
update half of the keys (8 pairs and 4 updates, 4 and 2). Then each key is asked once, at the gaps of `mqar_gaps`, and
the answer is its last value. Keys are distinct and from the lower half of the vocabulary (its token 0 is the blank),
values from the upper half.

Differences from Zoology: no value occurs in two pairs of a row, so that an old value is never right (Zoology's new
values differ only from their key's old one); answers follow their questions, and random filler contains none of the
row's pairs, as in `mqar_gaps`.
"""

from dataclasses import dataclass, field

import numpy as np

from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.pair_tasks import GapTask, Pairs, pair_hash
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.tokens import numbers


def updates(pairs: int) -> int:
    """Returns how many of `pairs` keys are stated again: half of them, rounded up."""
    return -(-pairs // 2)


@dataclass(frozen=True)
class ForgettingMqar(GapTask):
    """See the module; `needles` is the number of keys."""

    name: str = field(default="forgetting_mqar", init=False)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`: each key is stated and asked, and half of them are stated again."""
        pairs = needles or self.needles
        return 4 * pairs + 2 * updates(pairs)

    def _size(self, pairs: int) -> int:
        return 2 * (pairs + updates(pairs))

    def pairs_of(self, draw: Draw, first: int, count: int, pairs: int, vary: bool) -> Pairs:
        """See `PairTask`."""
        half, key = self.vocab_size // 2, draw.key(self.name)
        m = numbers(key, first, count, pairs, vary)
        most = updates(pairs)
        valid, renewed = np.arange(pairs) < m[:, None], np.arange(most) < -(-m[:, None] // 2)

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, 2 * half - 1 + pairs, attempt)
            keys = 1 + seeding.smallest(words[:, : half - 1], pairs)
            values = half + seeding.smallest(words[:, half - 1 : 2 * half - 1], pairs + most)
            ranks = words[:, 2 * half - 1 : 2 * half - 1 + pairs].copy()
            ranks[~valid[low : low + rows]] = np.iinfo(np.uint64).max
            return keys, values, np.argsort(ranks, axis=1, kind="stable")[:, :most]

        def content(drawn: Arrays) -> np.ndarray:
            return pair_hash(drawn[0], self._last(drawn[1], drawn[2], renewed)[0], valid=valid)

        keys, values, order = settled(make, content, count, draw.held_out)
        last, ends = self._last(values, order, renewed)
        tokens = np.full((count, self._size(pairs) + 1), -1, np.int64)
        rows = np.arange(count)[:, None]
        first_told = np.where(valid, 2 * np.arange(pairs), self._size(pairs))
        again = np.where(renewed, 2 * m[:, None] + 2 * np.arange(most), self._size(pairs))
        for columns, told_keys, told_values in (
            (first_told, keys, values[:, :pairs]),
            (again, np.take_along_axis(keys, order, axis=1), values[:, pairs:]),
        ):
            tokens[rows, columns] = told_keys
            tokens[rows, np.minimum(columns + 1, self._size(pairs))] = told_values
        new = ends >= 0
        ends = np.where(new, 2 * m[:, None] + 2 * ends + 1, 2 * np.arange(pairs) + 1)
        return Pairs(tokens[:, : self._size(pairs)], keys[:, :, None], last, ends, m)

    @staticmethod
    def _last(values: np.ndarray, order: np.ndarray, renewed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns each key's last value, and the number of its update or -1, int64 [n, P] both."""
        pairs = values.shape[1] - order.shape[1]
        update = np.full((len(values), pairs + 1), -1, np.int64)
        rows = np.arange(len(values))[:, None]
        update[rows, np.where(renewed, order, pairs)] = np.arange(order.shape[1])
        update = update[:, :pairs]
        new = np.take_along_axis(values, pairs + np.maximum(update, 0), axis=1)
        return np.where(update >= 0, new, values[:, :pairs]), update


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    mqar = setting.mqar
    return ForgettingMqar(mqar.pairs, mqar.vocab_size, mqar.power, mqar.filler == "random")
