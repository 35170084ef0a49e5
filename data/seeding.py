"""Every random choice of the data is a pure function of (seed, purpose, counters), whichever worker computes it."""

import numpy as np

# One purpose per independent random stream; changing a number would change the order of data.
ORDER, PHASE, MQAR_TRAIN, MQAR_EVAL, PASSKEY, TASK_TRAIN, TASK_EVAL = range(7)


def sequence(seed: int, purpose: int, *key: int) -> np.random.SeedSequence:
    """Returns the seed of one stream; different (seed, purpose, key) are independent, for seeds of any size."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(purpose, *key))


def seed32(seed: int, purpose: int, *key: int) -> int:
    """Returns 32 mixed bits of the whole seed, for libraries that accept no more."""
    return int(sequence(seed, purpose, *key).generate_state(1)[0])


def philox_key(seed: int, purpose: int, *key: int) -> np.ndarray:
    """Returns the 128-bit key of a counter-based generator, uint64 [2]."""
    return sequence(seed, purpose, *key).generate_state(2, np.uint64)


def random_words(key: np.ndarray, first: int, rows: int, words: int, attempt: int = 0) -> np.ndarray:
    """Returns random words of consecutive rows, each row a function of its index alone.

    Args:
        key: from `philox_key`.
        first: the first row's index.
        rows: number of rows.
        words: words per row; rounded up to a multiple of 4, Philox's block.
        attempt: another value gives new words for the same rows.

    Returns:
        uint64 [rows, words rounded up].
    """
    blocks = -(-words // 4)
    counter = first * blocks + (attempt << 128)
    counter_words = np.array([(counter >> (64 * i)) & (2**64 - 1) for i in range(4)], np.uint64)
    return np.random.Philox(key=key, counter=counter_words).random_raw(rows * blocks * 4).reshape(rows, blocks * 4)


def mix(x: np.ndarray) -> np.ndarray:
    """Returns 64 well-mixed bits for each word of uint64 [...]: the finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def smallest(words: np.ndarray, count: int) -> np.ndarray:
    """Returns the columns of each row's `count` smallest words in order: distinct numbers in random order."""
    if 4 * count > words.shape[1]:
        return np.argsort(words, axis=1)[:, :count]
    result = np.argpartition(words, count - 1, axis=1)[:, :count]
    return np.take_along_axis(result, np.argsort(np.take_along_axis(words, result, 1), axis=1), 1)
