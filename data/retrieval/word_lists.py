"""The base of tasks on lists of words (RULER, 2404.06654, appendix B): which words occur most often?

A row is an introduction, a list in which some words are repeated, a question, and the requested words. Parts are
tokenized separately and joined as tokens, so that a row has exactly the requested length.

Without a depth the list is shuffled, as in RULER. With a depth d the copies of the requested words are anywhere in the
first C + d (N - C) entries, of N entries and C copies. The rest of the list has only other words, so that its end alone
does not determine the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data.retrieval.draws import ATTEMPTS, Dice, Draw, held_out_facts, too_few
from data.retrieval.haystacks import Encoder
from data.retrieval.in_text import Laid, joined
from data.retrieval.rows import Rows
from data.retrieval.tokens import numbers

DOTS = " ..."  # filler entries, and the remainder of a row that no entry fits


@dataclass(frozen=True)
class WordList:
    """A list of entries; each kind defines which words it has how often.

    Attributes:
        encode: the tokenizer.
        needles: number of requested words.
        short: words of `letters` letters, without an introduction.
        letters: of the short form.
    """

    encode: Encoder
    needles: int
    short: bool = False
    letters: int = 2
    all_depths: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The task's name."""
        raise NotImplementedError

    @property
    def numbered(self) -> bool:
        """Whether entries and answers are preceded by a number."""
        return False

    def word(self, dice: Dice) -> str:
        """Returns a random word."""
        raise NotImplementedError

    def word_size(self) -> int:
        """Returns the bytes of a word, the same for all, with the space before it."""
        raise NotImplementedError

    def least(self, needles: int) -> list[tuple[str, int]]:
        """Returns (word, copies) of the shortest list with this many requested words; "?" is any word."""
        raise NotImplementedError

    def fill(self, dice: Dice, asked: Sequence[str], room: int) -> tuple[list[int], list[str]]:
        """Returns (copies of each requested word, all other entries), in at most `room` tokens with their numbers."""
        raise NotImplementedError

    def introduction(self, needles: int) -> str:
        """Returns the text before the list."""
        raise NotImplementedError

    def question(self, needles: int) -> str:
        """Returns the text after the list."""
        raise NotImplementedError

    def in_order(self, asked: Sequence[str], entries: Sequence[str]) -> list[str]:
        """Returns the requested words in the order of the answers."""
        raise NotImplementedError

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`: a word counts one token per byte."""
        most = needles or self.needles
        return max(self._least(number) for number in {1, most})

    def _least(self, needles: int) -> int:
        entries = self.least(needles)
        size = sum(copies * (self.word_size() if word == "?" else len(self.encode(word))) for word, copies in entries)
        if self.numbered:
            size += sum(len(self.number(index)) for index in range(sum(copies for _, copies in entries)))
        answers = needles * self.word_size() + sum(len(self.before(place)) for place in range(needles))
        return len(self.encode(self.introduction(needles))) + size + len(self.encode(self.question(needles))) + answers

    def number(self, index: int) -> np.ndarray:
        """Returns the tokens before an entry of the list, int32 [n]."""
        return self.encode(f" {index + 1}." if self.numbered else "")

    def before(self, place: int) -> np.ndarray:
        """Returns the tokens before an answer, int32 [n]."""
        return self.encode(f" {place + 1}." if self.numbered else "," if place else "")

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
        key = draw.key(self.name)
        drawn = numbers(key, first, count, needles or self.needles, vary).tolist()
        rows = [self._row(key, first + index, draw.held_out, length, number, depth)
                for index, number in enumerate(drawn)]  # fmt: skip
        return joined(rows, length)

    def _row(self, key: np.ndarray, row: int, held_out: bool, length: int, needles: int, depth: float | None) -> Laid:
        for attempt in range(ATTEMPTS):
            dice = Dice(key, row, attempt)
            asked = dice.distinct(self.word, needles)
            if held_out_facts(asked) == held_out:
                return self._lay_out(dice, asked, length, depth)
        raise too_few()

    def _lay_out(self, dice: Dice, asked: list[str], length: int, depth: float | None) -> Laid:
        encode, number = self.encode, len(asked)
        introduction, question = encode(self.introduction(number)), encode(self.question(number))
        end = sum(len(encode(word)) for word in asked) + sum(len(self.before(place)) for place in range(number))
        room = length - len(introduction) - len(question) - end
        if length < self._least(number):
            raise UserError(
                f"a row of {length} tokens is too short for {self.name}: this one needs {self._least(number)}"
            )
        copies, others = self.fill(dice, asked, room)
        entries = self._ordered(dice, asked, copies, others, depth)
        pieces = [self.number(index) for index in range(len(entries))]
        sizes = np.array([len(before) + len(encode(word)) for before, word in zip(pieces, entries, strict=True)])
        left = room - int(sizes.sum())
        dots = encode(DOTS)
        filler = np.tile(dots, -(-left // len(dots)))[-left:] if left else dots[:0]
        ends = len(introduction) + left + np.cumsum(sizes)
        parts = [introduction, filler]
        for before, word in zip(pieces, entries, strict=True):
            parts += [before, encode(word)]
        parts.append(question)
        last = {word: index for index, word in enumerate(entries)}
        at, spans, homes = length - end, [], []
        for place, word in enumerate(self.in_order(asked, entries)):
            parts += [self.before(place), encode(word)]
            at += len(parts[-2])
            spans.append((at, at + len(parts[-1])))
            at += len(parts[-1])
            homes.append((int(ends[last[word]]) - len(parts[-1]), int(ends[last[word]]), word.strip()))
        begin = len(introduction) + left
        return Laid(
            tokens=np.concatenate(parts),
            spans=np.array(spans),
            depths=np.array([(start - begin) / max(1, room - left) for start, _, _ in homes]),
            needles=np.array([(start, stop) for start, stop, _ in homes], np.int32),
            prompt=length - end + len(self.before(0)),
            number=number,
            references=tuple(word for _, _, word in homes),
            distances=np.array([begin - (stop - 1) for (begin, _), (_, stop, _) in zip(spans, homes, strict=True)]),
        )

    @staticmethod
    def _ordered(
        dice: Dice, asked: Sequence[str], copies: Sequence[int], others: Sequence[str], depth: float | None
    ) -> list[str]:
        """Returns the entries in their order; see the module."""
        others = shuffled(dice, others)
        repeated = [word for word, number in zip(asked, copies, strict=True) for _ in range(number)]
        kept = len(others) if depth is None else round(depth * len(others))
        return [*shuffled(dice, [*repeated, *others[:kept]]), *others[kept:]]


def shuffled(dice: Dice, words: Sequence[str]) -> list[str]:
    """Returns words in random order (Fisher and Yates)."""
    result = list(words)
    for last in range(len(result) - 1, 0, -1):
        other = dice.below(last + 1)
        result[last], result[other] = result[other], result[last]
    return result
