"""Frequent words extraction (RULER, 2404.06654, appendix B): which coded words occur most often in a text?

Words of six random letters follow a zeta distribution: the k-th most frequent of N words has N k^-a / zeta(a) copies,
rounded down, a = 2. The first is noise, written `...`; the following ones (3 in RULER) are requested, in the order of
their counts. There are as many words as a fiftieth of the row's tokens, as in RULER's code, or the requested words and
one more. Differences from RULER: the requested words, and the one after them, each have fewer copies than the word
before, so that there is one right order (in short rows rounding makes some equal); remaining space is noise. In the
short form words have `data.retrieval.letters` letters, and there is no introduction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_lowercase

from data.retrieval.draws import Dice
from data.retrieval.in_text import letters
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.word_lists import DOTS, WordList

ZETA = math.pi**2 / 6  # zeta(2)
COUNTS = ("", "", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ", "nine ", "ten ")


def copies(total: int, asked: int, words: int) -> list[int]:
    """Returns the copies of each word by rank, without the noise, in a text of about `total` words."""
    result = [int(total / ZETA / rank**2) for rank in range(2, words + 2)]
    for place in range(1, min(asked + 1, words)):
        result[place] = max(0, min(result[place], result[place - 1] - 1))
    for place in range(asked + 1, words):
        result[place] = min(result[place], result[place - 1])
    return result


@dataclass(frozen=True)
class FrequentWords(WordList):
    """See the module; `needles` is the number of requested words."""

    @property
    def name(self) -> str:
        """The task's name."""
        return "fwe"

    def word(self, dice: Dice) -> str:
        """See `WordList`."""
        return " " + letters(dice, self.letters if self.short else 6, ascii_lowercase)

    def word_size(self) -> int:
        """See `WordList`."""
        return 1 + (self.letters if self.short else 6)

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return float(len(ascii_lowercase)) ** -(self.letters if self.short else 6)

    @property
    def _noise(self) -> str:
        return " ." if self.short else DOTS

    def least(self, needles: int) -> list[tuple[str, int]]:
        """See `WordList`: every requested word occurs."""
        total = next(total for total in count(needles) if copies(total, needles, needles)[-1] > 0)
        return [*(("?", number) for number in copies(total, needles, needles)), (self._noise, int(total / ZETA))]

    def fill(self, dice: Dice, asked: Sequence[str], room: int) -> tuple[list[int], list[str]]:
        """See `WordList`."""
        encode, number = self.encode, len(asked)
        words = [*asked, *dice.distinct(self.word, max(1, room // 50 - number), asked)]
        sizes, noise = [len(encode(word)) for word in words], len(encode(self._noise))

        def size(total: int) -> int:
            taken = sum(c * s for c, s in zip(copies(total, number, len(words)), sizes, strict=True))
            return taken + noise * int(total / ZETA)

        low, high = number, room + 2
        while high - low > 1:  # the largest text that fits
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) <= room else (low, middle)
        repeated = copies(low, number, len(words))
        others = [word for word, c in zip(words[number:], repeated[number:], strict=True) for _ in range(c)]
        left = room - sum(c * s for c, s in zip(repeated, sizes, strict=True))
        return repeated[:number], [*others, *[self._noise] * (left // noise)]

    def introduction(self, needles: int) -> str:
        """See `WordList`."""
        if self.short:
            return ""
        return (
            "Read the following coded text and track the frequency of each coded word. Find the "
            f"{_many(needles)}most frequently appeared coded word{'s' * (needles > 1)}."
        )

    def question(self, needles: int) -> str:
        """See `WordList`."""
        if self.short:
            return "#"
        what = f"{_many(needles)}most frequently appeared word{'s' * (needles > 1)}"
        verb = "are" if needles > 1 else "is"
        return (
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What "
            f"{verb} the {what} in the above coded text? Answer: According to the coded text above, the {what} {verb}:"
        )

    def in_order(self, asked: Sequence[str], entries: Sequence[str]) -> list[str]:
        """See `WordList`: by their counts, as they were drawn."""
        return list(asked)


def _many(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else f"{number} "


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    fields = setting.retrieval
    task = FrequentWords(setting.encode, fields.needles, setting.short, fields.letters)
    pieces = [task.introduction(3), task.question(3), ascii_lowercase, DOTS, ","]
    task.encode.check(task.name, pieces if not setting.short else [ascii_lowercase, DOTS, "#", ","])
    return task
