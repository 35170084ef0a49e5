"""Variable tracking (RULER, 2404.06654): a chain of assignments in a haystack; which names have the value?

`VAR ABCDE = 12345`, and then each `VAR FGHIJ = VAR ABCDE` copies the value of the previous name: one chain, four hops
by default, so five names, all of which are asked for. Differences from RULER: no worked example before the text;
assignments are inserted between tokens, in their order; names are answered in the order of the chain.
"""

from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase

from data.retrieval.draws import Dice
from data.retrieval.in_text import Needle, Sample, TextTask, letters, number
from data.retrieval.rows import Task
from data.retrieval.setting import Setting


@dataclass(frozen=True)
class VariableTracking(TextTask):
    """`needles` is the number of hops. The short form is `#AB=12345;` and `#CD=AB;`, asked for by `#12345:`."""

    digits: int = 5
    letters: int = 5

    @property
    def name(self) -> str:
        """The task's name."""
        return "variable_tracking"

    @property
    def chained(self) -> bool:
        """A name is stated before it is used."""
        return True

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return float(len(ascii_uppercase)) ** -self.letters

    def alphabet(self) -> tuple[str, ...]:
        """See `TextTask`."""
        return "0123456789", ascii_uppercase

    def sample(self, dice: Dice, needles: int) -> Sample:
        """See `TextTask`."""
        value = number(dice, self.digits)
        names = dice.distinct(self._name, needles + 1)
        messages = [self._assignment(names[0], value, chain=False)]
        messages += [self._assignment(new, old, chain=True) for old, new in pairwise(names)]
        space = "" if self.short else " "
        return Sample(
            needles=tuple(messages),
            answers=tuple((space + name, place) for place, name in enumerate(names)),
            question=("#", value, ":") if self.short else _question(value, len(names)),
            facts=(value, "=".join(names)),
            drawn=tuple((string, len(string)) for string in (value, *names)),
            unique=tuple(f"#{name}=" for name in names) if self.short else (value, *names),
            introduction=""
            if self.short
            else "Memorize and track the chain of variable assignment hidden in the following text.\n",
            between="," if self.short else "",
        )

    def distractor(self, dice: Dice, sample: Sample) -> Needle:
        """See `TextTask`: another name with another value."""
        taken = [string for string, _ in sample.drawn]
        (name,) = dice.distinct(self._name, 1, taken)
        (value,) = dice.distinct(lambda d: number(d, self.digits), 1, taken)
        return self._assignment(name, value, chain=False)

    def _assignment(self, name: str, what: str, chain: bool) -> Needle:
        if self.short:
            return "#", name, "=", what, ";"
        return " VAR", f" {name}", " = VAR" if chain else " =", f" {what}", "."

    def _name(self, dice: Dice) -> str:
        return letters(dice, self.letters, ascii_uppercase)


def _question(value: str, names: int) -> Needle:
    return (
        "\nQuestion: Find all variables that are assigned the value",
        f" {value}",
        " in the text above. Answer: According to the chain of variable assignment in the text above,"
        f" {names} variables are assigned the value",
        f" {value}",
        ", they are:",
    )


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    fields = setting.retrieval
    size = {"digits": fields.digits or 5, "letters": fields.letters if setting.short else 5}
    return VariableTracking(setting.encode, setting.hay(), fields.needles, setting.short, **size)
