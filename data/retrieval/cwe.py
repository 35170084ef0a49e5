"""Common words extraction (RULER, 2404.06654, appendix B): which words occur most often in a numbered list?

Each requested word (10 in RULER) has 30 copies and each other word 3, or 6 and 1 in rows of fewer than 4,096 tokens,
as in RULER's code. Differences from RULER: no worked example before the list; the words are those of the needles, an
adjective and a noun; 30 copies only if they take up to half of the row; the space that no further entry fits is filled
with dots before the list; the answers are in the order in which their words first appear, since their counts are equal.
The short form is a list of words of `data.retrieval.letters` letters without numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from data.retrieval.draws import Dice
from data.retrieval.in_text import letters
from data.retrieval.niah import WORDS
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.word_lists import DOTS, WordList

FEW, MANY = (6, 1), (30, 3)  # copies of requested words, and of others
LONG = 4096  # tokens of a row from which on there may be many


@dataclass(frozen=True)
class CommonWords(WordList):
    """See the module; `needles` is the number of requested words."""

    @property
    def name(self) -> str:
        """The task's name."""
        return "cwe"

    @property
    def numbered(self) -> bool:
        """See `WordList`."""
        return not self.short

    def word(self, dice: Dice) -> str:
        """See `WordList`."""
        return " " + (letters(dice, self.letters, ascii_lowercase) if self.short else WORDS[dice.below(len(WORDS))])

    def word_size(self) -> int:
        """See `WordList`."""
        return 1 + (self.letters if self.short else len(WORDS[0]))

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return float(len(ascii_lowercase)) ** -self.letters if self.short else 1 / len(WORDS)

    def least(self, needles: int) -> list[tuple[str, int]]:
        """See `WordList`."""
        return [("?", FEW[0])] * needles

    def fill(self, dice: Dice, asked: Sequence[str], room: int) -> tuple[list[int], list[str]]:
        """See `WordList`."""
        many = sum(MANY[0] * (len(self.encode(word)) + len(self.number(999))) for word in asked)
        repeated, each = MANY if room >= LONG and 2 * many <= room else FEW
        entries = repeated * len(asked)
        left = room - sum(repeated * len(self.encode(word)) for word in asked)
        left -= sum(len(self.number(index)) for index in range(entries))
        others: list[str] = []
        seen = set(asked)
        while True:
            (word,) = dice.distinct(self.word, 1, seen)
            seen.add(word)
            for _ in range(each):
                size = len(self.number(entries)) + len(self.encode(word))
                if size > left:
                    return [repeated] * len(asked), others
                others.append(word)
                entries, left = entries + 1, left - size

    def introduction(self, needles: int) -> str:
        """See `WordList`."""
        if self.short:
            return ""
        return (
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
            "that appear most often.\n"
        )

    def question(self, needles: int) -> str:
        """See `WordList`."""
        if self.short:
            return "#"
        return (
            f"\nQuestion: What are the {needles} most common words in the above list? Answer: The top {needles} words "
            "that appear most often in the list are:"
        )

    def in_order(self, asked: Sequence[str], entries: Sequence[str]) -> list[str]:
        """See `WordList`: by first appearance."""
        return sorted(asked, key=entries.index)


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    fields = setting.retrieval
    task = CommonWords(setting.encode, fields.needles, setting.short, fields.letters)
    pieces = [task.introduction(1), task.question(1), ascii_lowercase, "-0123456789.", DOTS, ","]
    task.encode.check(task.name, pieces if not setting.short else [ascii_lowercase, DOTS, "#", ","])
    return task
