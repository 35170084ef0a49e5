"""Multi-query associative recall as Zoology defines it (2312.04927, section 4): questions at gaps of a power law.

All m pairs come first. Then follow slots of two tokens, and each key is asked once, in slot g with p ~ g^(a - 1), at
most one per slot; a = 0.01 puts most questions near the pairs. Keys are distinct and from the lower half of the
vocabulary (its token 0 is the blank), values distinct and from the upper half.

Differences from Zoology: an answer follows its question, as in language modeling, where Zoology has filler; random
filler (`data.mqar.filler`) leaves out the row's keys and values, so that only the pairs determine an answer; every step
has new rows. `data/mqar.py` is the same task without gaps.
"""

from dataclasses import dataclass, field

import numpy as np

from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.pair_tasks import GapTask, Pairs, plain
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.tokens import numbers


@dataclass(frozen=True)
class MqarGaps(GapTask):
    """See the module; `needles` is the number of pairs."""

    name: str = field(default="mqar_gaps", init=False)

    def pairs_of(self, draw: Draw, first: int, count: int, pairs: int, vary: bool) -> Pairs:
        """See `PairTask`."""
        half, key = self.vocab_size // 2, draw.key(self.name)
        m = numbers(key, first, count, pairs, vary)

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, 2 * half - 1, attempt)
            keys = 1 + seeding.smallest(words[:, : half - 1], pairs)
            return keys, half + seeding.smallest(words[:, half - 1 : 2 * half - 1], pairs)

        def content(drawn: Arrays) -> np.ndarray:
            hashes = seeding.mix((drawn[0] * self.vocab_size + drawn[1]).astype(np.uint64))
            hashes[np.arange(pairs) >= m[:, None]] = 0
            return hashes.sum(axis=1, dtype=np.uint64)

        keys, values = settled(make, content, count, draw.held_out)
        return plain(keys, values, m)


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    mqar = setting.mqar
    return MqarGaps(mqar.pairs, mqar.vocab_size, mqar.power, mqar.filler == "random")
