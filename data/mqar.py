"""Multi-query associative recall (Zoology, 2312.04927), in its plainest form: pairs, then their keys again.

A row of length T is `length + 1` tokens: m pairs (key value key value ...), then the m keys in random order, each
followed by its value. Keys are distinct and come from the lower half of the vocabulary, values from the upper half. The
loss counts only where an answer is to be predicted. Zoology draws the gap between a pair and its query from a power
law; here every gap is as likely as a random order makes it.

Rows with fewer pairs are padded at the end with weight 0. Attention is causal, so no answer sees the padding and no
segment ids are needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ml_collections import ConfigDict

from data import seeding


@dataclass(frozen=True)
class Recall:
    """Rows of recall.

    Attributes:
        tokens, targets: int32 [n, T].
        weights: float32 [n, T], 1 where the target is an answer.
        pair: int32 [n, T], the index of the pair that is asked for there, -1 elsewhere.
        pairs: int32 [n], how many pairs each row has.
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    pair: np.ndarray
    pairs: np.ndarray

    @property
    def depth(self) -> np.ndarray:
        """Where the pair that is asked for lies among its row's pairs: index / (pairs - 1), float [n, T], NaN elsewhere."""
        depth = self.pair / np.maximum(1, self.pairs - 1)[:, None]
        return np.where(self.pair >= 0, depth, np.nan)

    def batch(self) -> dict[str, np.ndarray]:
        """Returns tokens, targets and weights."""
        return {"tokens": self.tokens, "targets": self.targets, "weights": self.weights}


def training_rows(seed: int, stage: int, first: int, rows: int, length: int, pairs: int, vocab_size: int) -> Recall:
    """Returns fresh training rows, each a function of (seed, stage, its number); m is uniform in 1 .. pairs."""
    key = seeding.philox_key(seed, seeding.MQAR_TRAIN, stage)
    words = seeding.random_words(key, first, rows, 1 + vocab_size // 2 + 2 * pairs)
    number = 1 + (words[:, 0] % np.uint64(pairs)).astype(np.int32)
    return _rows(words[:, 1:], number, length, pairs, vocab_size, queries=pairs)


def evaluation_rows(seed: int, first: int, rows: int, length: int, pairs: int, vocab_size: int) -> Recall:
    """Returns rows that training never draws, all with `pairs` pairs, filled up to `length` with queries.

    Where the row is longer than one round of queries, further rounds follow, each in another random order, so that a
    longer row asks for the same pairs over longer distances. The stream of random numbers is another than training's
    for every seed, so samples coincide only as chance has it.
    """
    rounds = max(1, -(-(length + 1 - 2 * pairs) // (2 * pairs)))
    key = seeding.philox_key(seed, seeding.MQAR_EVAL)
    words = seeding.random_words(key, first, rows, vocab_size // 2 + pairs + rounds * pairs)
    return _rows(words, np.full(rows, pairs, np.int32), length, pairs, vocab_size, queries=rounds * pairs)


def _rows(words: np.ndarray, number: np.ndarray, length: int, pairs: int, vocab_size: int, queries: int) -> Recall:
    """Lays rows out of random words [n, >= vocab_size/2 + pairs + queries]."""
    n, half = len(words), vocab_size // 2
    keys = np.argsort(words[:, :half], axis=1, kind="stable")[:, :pairs]
    values = half + (words[:, half : half + pairs] % np.uint64(half)).astype(np.int64)
    order = words[:, half + pairs : half + pairs + queries].reshape(n, queries // pairs, pairs).copy()
    order[np.broadcast_to(np.arange(pairs) >= number[:, None, None], order.shape)] = np.iinfo(np.uint64).max
    asked = np.argsort(order, axis=2, kind="stable").reshape(n, queries)

    width = max(length + 1, 2 * (pairs + queries))
    tokens = np.zeros((n, width), np.int32)
    pair = np.full((n, width), -1, np.int32)
    row = np.arange(n)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    for query in range(queries):
        place = 2 * number + 2 * query
        which = asked[:, query]
        # In a row with fewer pairs, only its own are asked for; what lies behind is padding, cleared below.
        real = (query % pairs) < number
        tokens[row, place], tokens[row, place + 1] = keys[row, which], values[row, which]
        pair[row, place] = np.where(real, which, -1)
    end = np.where(number < pairs, 4 * number, width)
    columns = np.arange(width)
    tokens[columns >= end[:, None]] = 0
    pair[columns >= end[:, None]] = -1
    pair = pair[:, :length]
    weights = (pair >= 0).astype(np.float32)
    return Recall(tokens[:, :length], tokens[:, 1 : length + 1], weights, pair, number)


def evaluation(config: ConfigDict, *, length: int, batch_size: int, rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields evaluation batches of a resolved config's recall (tokens, targets, weights), `rows` rows in all."""
    settings = config.data.mqar
    pairs = min(settings.pairs, (length + 1) // 4)
    for first in range(0, rows, batch_size):
        count = min(batch_size, rows - first)
        found = evaluation_rows(config.seed, first, count, length, pairs, settings.vocab_size).batch()
        padding = ((0, batch_size - count), (0, 0))
        yield {name: np.pad(x, padding) for name, x in found.items()}
