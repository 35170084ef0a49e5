"""Shared by tasks in bare tokens: the number of items per row, and filler without given tokens."""

import numpy as np

from data import seeding
from data.retrieval.draws import ATTEMPTS


def numbers(key: np.ndarray, first: int, count: int, most: int, vary: bool) -> np.ndarray:
    """Returns the number of items in each row, int64 [count]: `most`, or uniform in 1 .. most."""
    if not vary:
        return np.full(count, most, np.int64)
    # From an attempt that no other draw uses, so that a redrawn row keeps its number.
    words = seeding.random_words(key, first, count, 1, ATTEMPTS)[:, 0]
    return 1 + (words % np.uint64(most)).astype(np.int64)


def excluding(key: np.ndarray, first: int, size: int, excluded: np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns random tokens, int32 [n, size], without each row's `excluded` tokens [n, k] (-1: none).

    A row's excluded tokens are distinct, and fewer than the vocabulary.
    """
    words = seeding.random_words(key, first, len(excluded), size)[:, :size]
    allowed = vocab_size - (excluded >= 0).sum(axis=1)
    result = (words % allowed[:, None].astype(np.uint64)).astype(np.int64)
    # The r-th allowed token: shifted by one for each excluded token up to there, smallest first.
    for token in np.sort(np.where(excluded >= 0, excluded, 2 * vocab_size), axis=1).T:
        result += result >= token[:, None]
    return result.astype(np.int32)


def ordered_hash(tokens: np.ndarray) -> np.ndarray:
    """Returns a hash of each row's token sequence, uint64 [n]; -1 is skipped."""
    result = np.zeros(len(tokens), np.uint64)
    for column in tokens.T:
        result = np.where(column >= 0, seeding.mix(result + column.astype(np.uint64) + np.uint64(1)), result)
    return result
