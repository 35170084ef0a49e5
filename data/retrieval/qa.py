"""Question answering (RULER, 2404.06654, appendix B): a question about one paragraph among many of the same file.

Paragraphs are those of `data.retrieval.questions`, a file in SQuAD's format. The paragraph that answers lies among as
many others as fill the row, its place is the depth, and the question is at the row's end. The answer's tokens are
those that it has in its paragraph.

Training and evaluation share no paragraph, asked about or not (`squad.Squad`). The other paragraphs of a row are drawn
without repetition, again from the beginning where there are no more, and none holds the answer; the first is cut at
its beginning, so that a row is as long as asked to the token. At every length the questions are those whose paragraph
fits the shortest row that the config trains on, so that lengths differ in distance and not in what is asked.

Differences from RULER: documents are not numbered; no other paragraph holds the answer; one answer counts where
annotators gave several. The short form has no instructions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules import tasks
from data.retrieval.draws import ATTEMPTS, Dice, Draw, held_out_facts
from data.retrieval.haystacks import Hay
from data.retrieval.in_text import Laid, Needle, Sample, TextTask
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.retrieval.squad import Squad, holds, load

HEAD, END = "Document:\n", "\n\n"  # around each paragraph
INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
)


class Paragraphs:
    """Other paragraphs, of which the first is cut at its beginning."""

    kind = "paragraphs"

    def fill(self, dice: Dice, room: int, distractor: Callable[[], np.ndarray]) -> Hay:
        """See `haystacks.Haystack`; a needle goes in between two paragraphs, or behind all, and not before the cut."""
        results: list[np.ndarray] = []
        left, cut = room, False
        while left:
            made = distractor()
            cut = len(made) > left
            results.append(made[-left:])
            left -= len(results[-1])
        results.reverse()
        cuts = np.concatenate([[0], np.cumsum([len(one) for one in results])]).astype(np.int64)[cut:]
        return Hay(np.concatenate([np.zeros(0, np.int32), *results]).astype(np.int32), cuts)


@dataclass(frozen=True)
class QuestionAnswering(TextTask):
    """See the module.

    Attributes:
        squad: paragraphs and questions.
        room: tokens of the shortest row; what does not fit it is not asked.
    """

    squad: Squad = field(kw_only=True)
    room: int = field(kw_only=True)

    @property
    def name(self) -> str:
        """The task's name."""
        return "qa"

    def most(self) -> int | None:
        """A row asks one question."""
        return 1

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`: what the most frequent answer gets right."""
        return self.squad.commonest()

    def alphabet(self) -> tuple[str, ...]:
        """See `TextTask`."""
        return tuple(self.squad.characters())

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`."""
        return self.room

    def sample(self, dice: Dice, needles: int) -> Sample:
        """See `TextTask`: of both training and evaluation, of which `rows` takes one."""
        side = self.squad.sides[dice.below(2)]
        question = side.questions[dice.below(len(side.questions))]
        text = self.squad.paragraphs[question.paragraph]
        # The answer has the space before it, so that tokenizers which join the two see it as in the paragraph.
        start = question.start - (text[question.start - 1 : question.start] == " ")
        end = question.start + len(question.answer)
        golden = (HEAD + text[:start], text[start:end], text[end:] + END)
        asked = f"Question: {question.text}\nAnswer:"
        return Sample(
            needles=(golden,),
            answers=((golden[1], 0),),
            question=(asked if self.short else INSTRUCTION + asked,),
            facts=(text,),
            drawn=(),
            unique=(),
            introduction="" if self.short else f"{INSTRUCTION}The following are given documents.\n\n",
        )

    def distractors(self, dice: Dice, sample: Sample) -> Callable[[], Needle]:
        """See `TextTask`."""
        return self._others(dice, sample).__next__

    def _others(self, dice: Dice, sample: Sample) -> Iterator[Needle]:
        """Yields paragraphs of the row's side that do not hold the answer, without end."""
        own = self.squad.sides[held_out_facts(sample.facts)].paragraphs
        answer = sample.answers[0][0].strip()
        while True:
            for index in _permuted(dice, len(own)):
                text = self.squad.paragraphs[own[index]]
                if not holds(text, answer):
                    yield HEAD, text, END

    def _lay_out(self, dice: Dice, sample: Sample, length: int, number: int, depth: float | None) -> Laid | None:
        if length < self.room:
            raise UserError(f"a row of {length} tokens is too short for {self.name}: this one needs {self.room}")
        pieces = (sample.introduction, *sample.needles[0], *sample.question, sample.answers[0][0])
        if sum(len(self.encode(piece)) for piece in pieces) > self.room:
            return None
        return super()._lay_out(dice, sample, length, number, depth)

    def no_row(self) -> UserError:
        """See `TextTask`."""
        return UserError(
            f"{self.name}: of {ATTEMPTS} questions drawn, none fits a row of {self.room - 1} tokens with its "
            "paragraph; raise data.length (and that of curriculum stages), or set data.retrieval.form = 'short'"
        )


def _permuted(dice: Dice, count: int) -> Iterator[int]:
    """Yields 0 .. count - 1 in random order, each drawn when it is asked for (Fisher and Yates)."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        other = dice.below(last + 1)
        yield moved.get(other, other)
        moved[other] = moved.get(last, last)


def _shortest_row(config: ConfigDict) -> int:
    """Returns the tokens of the shortest row of any stage that trains on the task, or of the main setting's."""
    stages = [{}, *config.data.curriculum]
    asked = [stage for stage, mixture in zip(stages, tasks.mixtures(config), strict=True) if mixture["qa"] > 0]
    return min(stage.get("length", config.data.length) for stage in asked or [{}]) + 1


def make(setting: Setting) -> Task:
    """Returns the task that a setting names.

    Raises:
        UserError: the file, its characters or its paragraphs' sizes do not allow it.
    """
    squad = load(setting.retrieval.questions)
    encode = setting.encode
    room = _shortest_row(setting.config)
    task = QuestionAnswering(encode, Paragraphs(), 1, setting.short, squad=squad, room=room)
    encode.check(task.name, task.alphabet())
    for held_out in (False, True):
        task.rows(Draw(0, held_out=held_out), 0, 1, length=room)
    return task
