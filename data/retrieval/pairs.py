"""Key-value pairs in evaluation: recall as in training, and rows with more distance between pair and question.

`Mqar` has held-out rows of `data/mqar.py`, as in training. `FarPairs` lengthens rows of pairs: half of the pairs
(rounded up) are asked once, at the end of the row, and the filler between the pairs and these questions has no copy of
them, so that only the beginning of the row determines their answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import mqar, seeding
from data.retrieval.draws import Draw
from data.retrieval.pair_tasks import GapTask, Pairs, PairTask, distinct, pair_rows, places_of, plain
from data.retrieval.rows import Rows
from data.retrieval.tokens import excluding
from data.streams import Stream

PARTS = {name: 16 + index for index, name in enumerate(("counted", "questions", "gaps", "filler", "text"))}
ROUNDS = 64  # a text is searched for tokens other than keys over this many times the filler's length


@dataclass(frozen=True)
class Mqar(PairTask):
    """Held-out rows of key-value recall without filler; `needles` is the number of pairs.

    Pairs come first, then every key once in random order; the rest of the row is padding, as in training.
    """

    name: str = field(default="mqar", init=False)

    def laid(self, draw: Draw, first: int, count: int, length: int, pairs: int, vary: bool) -> Rows:
        """See `PairTask`. Answers are in the order of their questions.

        Raises:
            UserError: training rows are requested; `data/mqar.py` makes those.
        """
        tokens, columns, requested, m = self._drawn(draw, first, count, length, pairs, vary)
        valid = np.arange(pairs) < m[:, None]
        stated = plain(tokens[:, 0 : 2 * pairs : 2].astype(np.int64), tokens[:, 1 : 2 * pairs : 2].astype(np.int64), m)
        return pair_rows(tokens, stated, columns, requested, valid)

    def pairs_of(self, draw: Draw, first: int, count: int, pairs: int, vary: bool) -> Pairs:
        """See `PairTask`."""
        tokens, _, _, m = self._drawn(draw, first, count, 4 * pairs, pairs, vary)
        return plain(tokens[:, 0 : 2 * pairs : 2].astype(np.int64), tokens[:, 1 : 2 * pairs : 2].astype(np.int64), m)

    def _drawn(
        self, draw: Draw, first: int, count: int, length: int, pairs: int, vary: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns tokens [n, length], the columns of questions, the numbers of their pairs [n, P] and m [n]."""
        if not draw.held_out:
            raise UserError("mqar: rows for training are made by data/mqar.py")
        # Rows with exactly this number of pairs are the same at every length, apart from padding.
        drawn_at = length - 1 if vary else 4 * pairs - 1
        result = mqar.evaluation_rows(
            draw.seed, first, count, length=drawn_at, pairs=pairs, vocab_size=self.vocab_size, fixed=not vary
        )
        tokens = np.concatenate([result["tokens"], result["targets"][:, -1:]], axis=1)
        tokens = np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])))
        scored = result["weights"] > 0
        m = scored.sum(axis=1)
        valid = np.arange(pairs) < m[:, None]
        columns = np.argsort(~scored, axis=1, kind="stable")[:, :pairs]  # of the questions
        depths = np.take_along_axis(result["depths"], columns, axis=1)
        requested = np.where(valid, np.rint(np.nan_to_num(depths) * m[:, None]), 0).astype(np.int64)
        return tokens, columns, requested, m

    def far_filler(self, draw: Draw, part: int, first: int, length: int, stated: Pairs) -> np.ndarray:
        """See `PairTask`: token 0 may be a key here, and a value may be in several pairs."""
        return excluding(draw.key(self.name, part), first, length + 1, distinct(stated.tokens), self.vocab_size)


@dataclass(frozen=True)
class FarPairs:
    """Rows of pairs, half of which are asked once, at the end; `needles` is the number of pairs.

    Attributes:
        task: that defines the pairs.
        filler: between the pairs and the counted questions: `questions` (for the other pairs, answered, repeatedly,
            each round in another order; gaps if there is no other pair), `gaps` (each other pair asked once, in slot g
            with p ~ g^(power - 1), the rest as in the task's gaps) or `text`.
        power: of `gaps`.
        text: from which filler of text is cut, without the tokens that are keys of the row.
    """

    task: PairTask
    filler: str
    power: float = 0.01
    text: Stream | None = None
    all_depths: bool = field(default=True, init=False)

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def needles(self) -> int:
        """The task's number of pairs."""
        return self.task.needles

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`: as many tokens as if every pair were asked."""
        return self.task.shortest(needles)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return self.task.chance(needles)

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
        """See `rows.Task`; every row has exactly `needles` pairs.

        If the length is odd, a row ends with one token of padding.

        Raises:
            UserError: the length or the vocabulary is too small, or the number of pairs is to vary.
        """
        pairs = needles or self.needles
        if length < self.shortest(pairs):
            least = self.shortest(pairs)
            raise UserError(f"a row of {length} tokens is too short for {self.name}: {pairs} pairs need {least}")
        if vary:
            raise UserError(f"{self.name}: rows beyond the training length need a fixed number of pairs")
        stated = self.task.pairs_of(draw, first, count, pairs, False)
        size, width = stated.tokens.shape[1], stated.width
        requested, others = self._chosen(draw, first, count, pairs)
        places = (length - size - width * requested.shape[1]) // width
        tokens = np.zeros((count, length), np.int32)
        tokens[:, :size] = stated.tokens
        end = size + width * places  # of the filler
        tokens[:, size:end] = self._between(draw, first, stated, others, places)
        columns = end + width * np.arange(requested.shape[1])
        tokens[:, end : end + width * requested.shape[1]] = stated.questions(requested).reshape(count, -1)
        return pair_rows(tokens, stated, np.broadcast_to(columns, requested.shape), requested, requested >= 0)

    def reason(self, needles: int | None) -> str | None:
        """Returns why there is no filler for this many pairs, or None."""
        pairs = needles or self.needles
        if self.filler == "text" and self.text is None:
            return "eval.retrieval.filler = text: the run reads no text"
        random = not isinstance(self.task, GapTask) or self.task.random_filler
        if self._kind(pairs) == "gaps" and random and self.task.vocab_size <= 2 * pairs:
            return f"eval.retrieval.filler = gaps: {pairs} pairs leave no filler of {self.task.vocab_size} tokens"
        return None

    def _kind(self, pairs: int) -> str:
        return "gaps" if self.filler == "questions" and pairs == 1 else self.filler

    def _key(self, draw: Draw, part: str) -> np.ndarray:
        return draw.key(self.name, PARTS[part])

    def _chosen(self, draw: Draw, first: int, count: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of the pairs that are asked at the end, in that order, and of all others."""
        words = seeding.random_words(self._key(draw, "counted"), first, count, pairs)[:, :pairs]
        order = np.argsort(words, axis=1, kind="stable")
        return order[:, : -(-pairs // 2)], order[:, -(-pairs // 2) :]

    def _between(self, draw: Draw, first: int, stated: Pairs, others: np.ndarray, places: int) -> np.ndarray:
        """Returns the filler, int32 [n, (K + 1) * places]."""
        count, number = others.shape
        pairs, width = stated.values.shape[1], stated.width
        kind = self._kind(pairs)
        if kind == "text":
            return self._of_text(draw, first, stated.keys.reshape(count, -1), width * places)
        if kind == "questions":
            rounds = -(-places // number)
            words = seeding.random_words(self._key(draw, "questions"), first, count, rounds * number)
            order = np.argsort(words[:, : rounds * number].reshape(count, rounds, number), axis=2, kind="stable")
            requested = np.take_along_axis(others, order.reshape(count, -1)[:, :places], axis=1)
            return stated.questions(requested).reshape(count, -1).astype(np.int32)
        result = self.task.far_filler(draw, PARTS["filler"], first, width * places, stated)[:, : width * places]
        key, number = self._key(draw, "gaps"), min(number, places)
        columns = width * places_of(key, first, count, number, places, self.power)
        rows, asked = np.arange(count)[:, None], stated.questions(others[:, :number])
        for offset in range(width):
            result[rows, columns + offset] = asked[:, :, offset]
        return result

    def _of_text(self, draw: Draw, first: int, keys: np.ndarray, room: int) -> np.ndarray:
        assert self.text is not None, "`reason` refuses this"
        size, result = len(self.text), np.zeros((len(keys), room), np.int32)
        starts = seeding.random_words(self._key(draw, "text"), first, len(keys), 1)[:, 0] % np.uint64(size)
        for row, start in enumerate(starts.astype(np.int64)):
            have = 0
            for step in range(ROUNDS):
                if have == room:
                    break
                piece = np.asarray(self.text.tokens[(start + step * room + np.arange(room)) % size])
                piece = piece[~np.isin(piece, keys[row])][: room - have]
                result[row, have : have + len(piece)] = piece
                have += len(piece)
            if have < room:
                raise UserError("eval.retrieval.filler = text: the text has too few tokens that are not keys")
        return result


def far(task: PairTask, filler: str, *, power: float, text: Callable[[], Stream | None]) -> FarPairs:
    """Returns the task's rows for lengths beyond the training length; `filler` auto is as in training."""
    if filler == "auto":
        filler = "gaps" if isinstance(task, GapTask) else "questions"
    return FarPairs(task, filler, power, text() if filler == "text" else None)
