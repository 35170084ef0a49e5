"""Selective copying (Jing et al., 1706.02761; Mamba, 2312.00752, section 4.1): the tokens among the blanks, in order.

m tokens are at random positions among blanks (token 0); then comes a mark (token 1), and after it the m tokens in
order. Tokens are drawn from the rest of the vocabulary and may repeat. Differences from Mamba: the row is a sequence
for language modeling, one mark and then the answer, while Mamba has m marks and reads the answer off them; blanks are
one token.
"""

from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.rows import Rows, Task, same_spans
from data.retrieval.setting import Setting
from data.retrieval.tokens import numbers, ordered_hash

BLANK, MARK, FIRST = 0, 1, 2


@dataclass(frozen=True)
class SelectiveCopy:
    """See the module; `needles` is m."""

    needles: int
    vocab_size: int
    name: str = field(default="selective_copy", init=False)
    all_depths: bool = field(default=True, init=False)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`."""
        return 2 * (needles or self.needles) + 1

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return 1 / (self.vocab_size - FIRST)

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
        """See `rows.Task`. Each token is an answer; its depth is its position over the number of positions."""
        most = needles or self.needles
        if length < self.shortest(most):
            raise UserError(f"a row of {length} tokens is too short for selective_copy: it needs {self.shortest(most)}")
        m = numbers(draw.key(self.name), first, count, most, vary)
        message = self._tokens(draw, first, m, most)
        valid = np.arange(most) < m[:, None]
        room = length - 1 - m[:, None]
        places = self._places(draw, first, m, most, length)
        tokens = np.zeros((count, length + 1), np.int32)
        rows, answers = np.arange(count)[:, None], room + 1 + np.arange(most)
        tokens[rows, np.where(valid, places, length)] = message
        tokens[rows, room] = MARK
        tokens[rows, np.where(valid, answers, length)] = message
        prompts = (length - m).astype(np.int32)
        return Rows(
            tokens=np.ascontiguousarray(tokens[:, :length]),
            spans=same_spans(answers, valid),
            depths=np.where(valid, places / np.maximum(room - 1, 1), np.nan),
            needles=same_spans(places, valid),
            scored=np.arange(length) >= prompts[:, None],
            prompts=prompts,
            ends=np.full(count, length, np.int32),
            pairs=m.astype(np.int32),
            references=tuple(tuple(map(str, row[:n])) for row, n in zip(message.tolist(), m.tolist(), strict=True)),
            distances=np.where(valid, answers - places, 0).astype(np.int32),
        )

    def _tokens(self, draw: Draw, first: int, m: np.ndarray, most: int) -> np.ndarray:
        key, beyond = draw.key(self.name), np.arange(most) >= m[:, None]

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, most, attempt)[:, :most]
            return (FIRST + (words % np.uint64(self.vocab_size - FIRST)).astype(np.int64),)

        def content(drawn: Arrays) -> np.ndarray:
            return ordered_hash(np.where(beyond, -1, drawn[0]))

        return settled(make, content, len(m), draw.held_out)[0]

    def _places(self, draw: Draw, first: int, m: np.ndarray, most: int, length: int) -> np.ndarray:
        """Returns m different columns in increasing order, int64 [n, most], all before the mark."""
        columns = length - 2
        words = seeding.random_words(draw.key(self.name, 1), first, len(m), columns)[:, :columns].copy()
        words[np.arange(columns) >= length - 1 - m[:, None]] = np.iinfo(np.uint64).max
        chosen = np.argsort(words, axis=1, kind="stable")[:, :most]
        chosen = np.where(np.arange(most) < m[:, None], chosen, length)
        return np.sort(chosen, axis=1)


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    return SelectiveCopy(setting.retrieval.needles, setting.retrieval.vocab_size)
