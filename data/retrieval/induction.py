"""Induction (Olsson et al., 2209.11895; H3, 2212.14052): what followed this token the last time?

A segment of distinct random tokens is somewhere among other random tokens, none of which is in it. At the end of the
row its first token is repeated, and the answer is what followed it. In `induction_repeat` the answer is the rest of a
segment of m + 1 tokens, in `induction_complete` the one token after the first (A B ... A gives B).

If the row is twice the segment there is no filler, and the row is the repeated random sequence of Olsson et al.
Differences: their segments may repeat a token and have no filler; H3's first token is a special one.
"""

from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import Arrays, Draw, settled
from data.retrieval.rows import Rows, Task
from data.retrieval.setting import Setting
from data.retrieval.tokens import excluding, numbers, ordered_hash


@dataclass(frozen=True)
class Induction:
    """See the module; `needles` is m, the tokens of the one answer."""

    name: str
    needles: int
    vocab_size: int
    all_depths: bool = field(default=False, init=False)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`."""
        return 2 * (self._most(needles) + 1)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`: every token of the answer is guessed."""
        return float(self.vocab_size) ** -self._most(needles)

    def _most(self, needles: int | None) -> int:
        return 1 if self.name == "induction_complete" else needles or self.needles

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
        """See `rows.Task`."""
        most = self._most(needles)
        if length < self.shortest(most):
            raise UserError(f"a row of {length} tokens is too short for {self.name}: it needs {self.shortest(most)}")
        m = numbers(draw.key(self.name), first, count, most, vary)
        segments = self._segments(draw, first, m, most)
        size = m[:, None] + 1
        room = length - 2 * size
        if depth is None:
            words = seeding.random_words(draw.key(self.name, 1), first, count, 1)[:, :1]
            before = (words % (room + 1).astype(np.uint64)).astype(np.int64)
        else:
            before = np.array([[round(depth * int(space))] for space in room[:, 0]])
        filler = excluding(draw.key(self.name, 2), first, length, segments, self.vocab_size)
        column = np.arange(length)
        # Which token of the segment a column has, if any: the segment is at `before`, and again at the end.
        inside = np.where(column >= length - size, column - (length - size), column - before)
        inside = np.where((inside >= 0) & (inside < size), inside, -1)
        shown = np.take_along_axis(segments, np.maximum(inside, 0), axis=1)
        prompts = (length - m).astype(np.int32)
        return Rows(
            tokens=np.where(inside >= 0, shown, filler).astype(np.int32),
            spans=np.stack([prompts, np.full(count, length)], axis=1)[:, None].astype(np.int32),
            depths=np.where(room > 0, before / np.maximum(room, 1), 0.0),
            needles=np.concatenate([before, before + size], axis=1)[:, None].astype(np.int32),
            scored=column >= prompts[:, None],
            prompts=prompts,
            ends=np.full(count, length, np.int32),
            pairs=m.astype(np.int32),
            references=tuple(
                (" ".join(map(str, segment[1 : n + 1])),)
                for segment, n in zip(segments.tolist(), m.tolist(), strict=True)
            ),
            distances=(prompts[:, None] - (before + size - 1)).astype(np.int32),
        )

    def _segments(self, draw: Draw, first: int, m: np.ndarray, most: int) -> np.ndarray:
        """Returns int64 [n, most + 1], distinct tokens, -1 behind the end of the segment."""
        key = draw.key(self.name)
        beyond = np.arange(most + 1) > m[:, None]

        def make(low: int, rows: int, attempt: int) -> Arrays:
            words = seeding.random_words(key, first + low, rows, self.vocab_size, attempt)[:, : self.vocab_size]
            return (seeding.smallest(words, most + 1),)

        def content(drawn: Arrays) -> np.ndarray:
            return ordered_hash(np.where(beyond, -1, drawn[0]))

        (result,) = settled(make, content, len(m), draw.held_out)
        return np.where(beyond, -1, result)


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    needles = 1 if setting.name == "induction_complete" else setting.retrieval.needles
    return Induction(setting.name, needles, setting.retrieval.vocab_size)
