"""Rows of key-value recall at any length: the same pairs, asked for over longer and longer distances.

A row longer than one round of queries goes on with further rounds, each in another random order, so that the distance
between a pair and its query grows with the length while the task stays the same. Each pair counts once, at the last
question for it: that is as far away as the length says, and answers about one pair would not be independent.
"""

from dataclasses import dataclass

import numpy as np
from ml_collections import ConfigDict

from data import mqar

ORDER = 0x5265  # mixed into the seed of the further rounds' orders


@dataclass(frozen=True)
class Rows:
    """Rows of recall.

    Attributes:
        tokens, targets: int32 [n, T].
        depth: float [n, T], where the asked pair stands among its row's pairs, in [0, 1); NaN but at its last question.
        last: the column of the last query whose answer is inside the row; the same in every row.
    """

    tokens: np.ndarray
    targets: np.ndarray
    depth: np.ndarray
    last: int

    @property
    def counted(self) -> np.ndarray:
        """Where the target is an answer that counts, bool [n, T]."""
        return ~np.isnan(self.depth)

    def batch(self) -> dict[str, np.ndarray]:
        """Returns tokens, targets and weights (1 on the answers that count)."""
        return {"tokens": self.tokens, "targets": self.targets, "weights": self.counted.astype(np.float32)}


def pairs_of(config: ConfigDict) -> int:
    """Returns how many pairs evaluation rows hold: as many as the run was trained on, and the training length holds."""
    settings = config.data.mqar
    return max(1, min(settings.pairs, (config.data.length + 1) // 4, settings.vocab_size // 2))


def reason(config: ConfigDict, length: int, pairs: int | None = None) -> str | None:
    """Returns why a run cannot be asked for so many pairs (None: its own) in rows of `length`, or None."""
    if (config.model.vocab_size or 0) < config.data.mqar.vocab_size:
        return f"the model has {config.model.vocab_size} tokens, recall needs {config.data.mqar.vocab_size}"
    pairs = pairs or pairs_of(config)
    short = 4 * pairs - 1
    return f"{pairs} pairs and their questions take {short} tokens" if length < short else None


def rows(config: ConfigDict, first: int, count: int, length: int, pairs: int | None = None) -> Rows:
    """Returns held-out rows first .. first + count - 1 at a length of 4 * pairs - 1 tokens or more.

    Each row is a function of (seed, its number, the length, the number of pairs; None: the run's own).
    """
    pairs = pairs or pairs_of(config)
    short = 4 * pairs - 1
    settings = {"length": short, "pairs": pairs, "vocab_size": config.data.mqar.vocab_size}
    drawn = mqar.evaluation_rows(config.seed, first, count, **settings)
    whole = np.concatenate([drawn["tokens"], drawn["targets"][:, -1:]], axis=1)
    keys, values = whole[:, 0 : 2 * pairs : 2], whole[:, 1 : 2 * pairs : 2]
    # The first round as it was drawn, then further rounds in orders of their own.
    asked = [(whole[:, 2 * pairs :: 2][:, :, None] == keys[:, None, :]).argmax(axis=2)]
    rounds = -(-(length + 1 - 2 * pairs) // (2 * pairs))
    for row_round in range(1, rounds):
        orders = [
            np.random.default_rng([config.seed, ORDER, first + row, row_round]).permutation(pairs)
            for row in range(count)
        ]
        asked.append(np.array(orders))
    order = np.concatenate(asked, axis=1)
    queries = np.stack([np.take_along_axis(keys, order, 1), np.take_along_axis(values, order, 1)], axis=2)
    whole = np.concatenate([whole[:, : 2 * pairs], queries.reshape(count, -1)], axis=1)[:, : length + 1]

    depth = np.full((count, length), np.nan)
    columns = 2 * pairs + 2 * np.arange(order.shape[1])
    inside = columns < length
    order = order[:, inside]
    # The last question for pair p: the first one when read backwards.
    last = order.shape[1] - 1 - (order[:, ::-1, None] == np.arange(pairs)).argmax(axis=1)
    depth[np.arange(count)[:, None], columns[last]] = np.arange(pairs) / pairs
    tokens, targets = whole[:, :-1].astype(np.int32), whole[:, 1:].astype(np.int32)
    return Rows(tokens, targets, depth, int(columns[inside][-1]))
