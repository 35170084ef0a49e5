"""Multi-query associative recall (Zoology, 2312.04927) without filler: key-value pairs, then every key asked once.

A row has m pairs `key value key value ...` and then the m keys again in random order, each followed by its value. Keys
are distinct and from the lower half of the vocabulary, values from the upper half. Only answers are scored: the weight
is 1 exactly where the target is an answer. Every step has new rows; a fixed set would be memorized.

Shorter rows are padded at the end. The padding follows all scored tokens and attention is causal, so it has no effect
and needs no segment ids: the batch stays on the fast path.

Training and evaluation rows are disjoint, in their random numbers (different keys of a counter-based generator) and in
their content: an order-free hash of a row's pairs assigns one in eight of all possible rows to evaluation and the rest
to training.
"""

from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data import seeding

EVALUATION_SHARE = 8  # one row in this many is held out
ATTEMPTS = 512  # draws per row before an error

Batch = dict[str, np.ndarray]


def rows(
    seed: int,
    index: int,
    count: int,
    *,
    length: int,
    pairs: int,
    vocab_size: int,
    stage: int = 0,
    segments: bool = False,
) -> Batch:
    """Returns training rows index .. index + count - 1, each a function of (seed, stage, its index) and the setting.

    Args:
        seed: the run's.
        index: of the first row.
        count: how many rows.
        length: T, tokens per row; at least 4 * pairs - 1.
        pairs: maximum pairs per row; m is uniform in 1 .. pairs.
        vocab_size: of keys and values together.
        stage: of a curriculum; each stage draws different rows.
        segments: also return `positions` and `segments` (0 on padding), for batches with packed documents.

    Returns:
        tokens, targets int32 and weights float32, each [count, length].
    """
    key = seeding.philox_key(seed, seeding.MQAR_TRAIN, stage)
    drawn = _draw(key, index, count, pairs, vocab_size, fixed=False, held_out=False)
    batch, _ = _lay_out(*drawn, length, vocab_size)
    if segments:
        inputs = np.arange(length) < 4 * drawn[0][:, None] - 1
        batch["positions"] = np.broadcast_to(np.arange(length, dtype=np.int32), (count, length)).copy()
        batch["segments"] = inputs.astype(np.int32)
    return batch


def evaluation_rows(
    seed: int, index: int, count: int, *, length: int, pairs: int, vocab_size: int, fixed: bool = True
) -> Batch:
    """Returns held-out rows, with exactly `pairs` pairs each (`fixed`) or 1 .. pairs as in training.

    Returns:
        tokens, targets, weights as in `rows`, and `depths` float32 [count, length]: position of the answered pair among
            the row's pairs, its index / m in [0, 1); NaN where nothing is scored.

    Raises:
        UserError: the length or the vocabulary is too small for this many pairs.
    """
    if 4 * pairs > length + 1 or pairs > vocab_size // 2:
        raise UserError(
            f"{pairs} key-value pairs need a length of {4 * pairs - 1} and a vocabulary of {2 * pairs}; they are "
            f"{length} and {vocab_size}"
        )
    key = seeding.philox_key(seed, seeding.MQAR_EVAL, length, pairs)
    batch, depths = _lay_out(*_draw(key, index, count, pairs, vocab_size, fixed, held_out=True), length, vocab_size)
    return {**batch, "depths": depths}


def evaluation(config: ConfigDict, *, length: int, batch_size: int, rows: int) -> Iterator[Batch]:
    """Yields `rows` held-out rows in batches, for the validation loss of a run on key-value recall.

    The number of pairs is drawn as in training; its maximum grows with the length. The last batch is padded with rows
    of weight 0. Rows do not depend on the batch size.
    """
    data = config.data
    pairs = max(
        1, min(data.mqar.pairs * (length + 1) // (data.length + 1), (length + 1) // 4, data.mqar.vocab_size // 2)
    )
    for first in range(0, rows, batch_size):
        count = min(batch_size, rows - first)
        batch = evaluation_rows(
            config.seed, first, count, length=length, pairs=pairs, vocab_size=data.mqar.vocab_size, fixed=False
        )
        fill = [(0, batch_size - count), (0, 0)]
        yield {name: np.pad(batch[name], fill) for name in ("tokens", "targets", "weights")}


# m [n]; keys and values [n, pairs], of which the first m count; asked [n, pairs], indices of pairs in question order.
_Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _draw(key: np.ndarray, first: int, count: int, pairs: int, vocab_size: int, fixed: bool, held_out: bool) -> _Drawn:
    """Draws each row again until it is on the requested side of the split; rows do not depend on one another.

    A redrawn row keeps its m, so that m stays uniform.
    """
    drawn = _attempt(key, first, pairs, vocab_size, np.full(count, pairs if fixed else 0), 0)
    wrong = _held_out(*drawn[:3], vocab_size) != held_out
    for attempt in range(1, ATTEMPTS):
        if not wrong.any():
            return drawn
        # From the first wrong row to the last: redrawing some needlessly costs less than one generator per row.
        low, high = int(np.argmax(wrong)), len(wrong) - int(np.argmax(wrong[::-1]))
        again = _attempt(key, first + low, pairs, vocab_size, drawn[0][low:high], attempt)
        for old, new in zip(drawn, again, strict=True):
            old[low:high][wrong[low:high]] = new[wrong[low:high]]
        wrong = wrong & (_held_out(*drawn[:3], vocab_size) != held_out)
    raise UserError(
        f"data.mqar.vocab_size = {vocab_size} with {pairs} pairs allows too few different rows to hold some of them "
        "out; use a larger vocabulary"
    )


def _attempt(key: np.ndarray, first: int, pairs: int, vocab_size: int, m: np.ndarray, attempt: int) -> _Drawn:
    """Draws len(m) rows with m pairs each; m is drawn as well where it is 0."""
    half = vocab_size // 2
    words = seeding.random_words(key, first, len(m), 1 + half + 2 * pairs, attempt)
    m = np.where(m > 0, m, 1 + (words[:, 0] % np.uint64(pairs)).astype(np.int64))
    keys = seeding.smallest(words[:, 1 : 1 + half], pairs)
    values = (words[:, 1 + half : 1 + half + pairs] % np.uint64(half)).astype(np.int64) + half
    ranks = words[:, 1 + half + pairs : 1 + half + 2 * pairs].copy()
    ranks[np.arange(pairs) >= m[:, None]] = np.iinfo(np.uint64).max
    return m, keys, values, np.argsort(ranks, axis=1, kind="stable")


def _held_out(m: np.ndarray, keys: np.ndarray, values: np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns whether each row belongs to evaluation: by an order-free hash of its pairs, bool [n]."""
    hashes = seeding.mix((keys * vocab_size + values).astype(np.uint64) + np.uint64(1))
    hashes[np.arange(keys.shape[1]) >= m[:, None]] = 0
    return seeding.mix(hashes.sum(axis=1, dtype=np.uint64)) % np.uint64(EVALUATION_SHARE) == 0


def _lay_out(
    m: np.ndarray, keys: np.ndarray, values: np.ndarray, requested: np.ndarray, length: int, vocab_size: int
) -> tuple[Batch, np.ndarray]:
    count, pairs = keys.shape
    message = np.stack([keys, values], 2).reshape(count, 2 * pairs)
    answered = np.stack([np.take_along_axis(a, requested, 1) for a in (keys, values)], 2).reshape(count, 2 * pairs)
    column = np.arange(4 * pairs)
    told_end = 2 * m[:, None]
    # In `both`, questions start at 2 * pairs; in the row they follow the last stated pair.
    source = np.where(column < told_end, column, np.minimum(2 * pairs + column - told_end, 4 * pairs - 1))
    both = np.concatenate([message, answered], 1)
    row = np.where(column < 2 * told_end, np.take_along_axis(both, source, 1), 0)
    is_answer = (column >= told_end) & (column < 2 * told_end) & (column % 2 == 1)
    question = np.clip((column - told_end) // 2, 0, pairs - 1)
    depth = np.where(is_answer, np.take_along_axis(requested, question, 1) / m[:, None], np.nan)
    tail = [(0, 0), (0, length + 1 - 4 * pairs)]
    tokens = np.pad(row.astype(np.int32), tail)
    weights = np.pad(is_answer.astype(np.float32), tail)
    depths = np.pad(depth.astype(np.float32), tail, constant_values=np.nan)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights[:, 1:]}, depths[:, 1:]
