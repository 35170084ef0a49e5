"""Passkey retrieval (PI, 2306.15595; YaRN, 2309.00071): one number in a haystack, asked for at the end."""

from dataclasses import dataclass

from data.retrieval.draws import Dice
from data.retrieval.in_text import Needle, Sample, TextTask, number
from data.retrieval.rows import Task
from data.retrieval.setting import Setting


@dataclass(frozen=True)
class Passkey(TextTask):
    """`The pass key is 12345. Remember it.`; in the short form `#key=12345;`, asked for by `#key=`."""

    digits: int = 5

    @property
    def name(self) -> str:
        """The task's name."""
        return "passkey"

    def most(self) -> int | None:
        """There is one pass key."""
        return 1

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return 1 / (9 * 10 ** (self.digits - 1))

    def alphabet(self) -> tuple[str, ...]:
        """See `TextTask`."""
        return ("0123456789",)

    def sample(self, dice: Dice, needles: int) -> Sample:
        """See `TextTask`."""
        key = number(dice, self.digits)
        if self.short:
            needle, question, answer = ("#key=", key, ";"), ("#key=",), key
        else:
            # The answer includes the space before it, so that tokenizers which join the two see it as in the needle.
            needle, question, answer = (
                (" The pass key is", f" {key}", ". Remember it."),
                (" What is the pass key? The pass key is",),
                f" {key}",
            )
        return Sample((needle,), ((answer, 0),), question, (key,), ((key, self.digits),), (needle[0], key))

    def distractor(self, dice: Dice, sample: Sample) -> Needle:
        """There is none: another pass key would be an equally valid answer."""
        raise NotImplementedError


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    return Passkey(setting.encode, setting.hay(), 1, setting.short, digits=setting.retrieval.digits or 5)
