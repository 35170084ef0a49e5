"""Questions about paragraphs, from a local file in the format of SQuAD 1.1 or 2.0 (1606.05250, 1806.03822).

`{"data": [{"paragraphs": [{"context": TEXT, "qas": [{"question": TEXT, "answers": [ANSWER]}]}]}]}`, where ANSWER is
`{"text": TEXT, "answer_start": N}`, N in characters of the context. Other keys are not read.
"""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.documents import ordinary, read_json
from configs.errors import UserError
from data.retrieval.draws import held_out_facts


@dataclass(frozen=True)
class Question:
    """A question that its paragraph answers.

    Attributes:
        paragraph: of `Squad.paragraphs`, by number.
        text: the question.
        answer: the answer that most annotators gave, the first of equals, without spaces around it.
        start: of the answer, in characters of the paragraph.
    """

    paragraph: int
    text: str
    answer: str
    start: int


@dataclass(frozen=True)
class Side:
    """The paragraphs of training or of evaluation, and the questions about them.

    Attributes:
        paragraphs: numbers of `Squad.paragraphs`.
        questions: those whose answer is neither in the question itself nor in all other paragraphs of the side.
    """

    paragraphs: tuple[int, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Squad:
    """A file's paragraphs, each once.

    Attributes:
        paragraphs: their texts.
        sides: of training, of evaluation. A hash of a paragraph's text sends one in eight to evaluation.
        sha256: of the file.
    """

    paragraphs: tuple[str, ...]
    sides: tuple[Side, Side]
    sha256: str

    def commonest(self) -> float:
        """Returns the share of evaluation's questions that its most frequent answer is right for."""
        answers = [question.answer.casefold() for question in self.sides[True].questions]
        return max(Counter(answers).values()) / len(answers)

    def characters(self) -> list[str]:
        """Returns every character of the paragraphs and questions."""
        texts = [*self.paragraphs, *(question.text for side in self.sides for question in side.questions)]
        return sorted(set[str]().union(*texts))


def holds(text: str, answer: str) -> bool:
    """Tells whether a text holds an answer, in capitals or not, and not as part of a longer word or number.

    RULER counts parts of longer words too; with numbers of two digits that would be right by chance.
    """
    if answer.casefold() not in text.casefold():
        return False
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text, re.IGNORECASE) is not None


def load(path: str) -> Squad:
    """Reads a file; one that has not changed since is read once a process.

    Raises:
        UserError: it is not there, is no such file, or has no questions on one of the two sides.
    """
    place = Path(path).expanduser()
    try:
        about = ordinary(place).stat()
    except FileNotFoundError:
        raise UserError(f"data.retrieval.questions = {path!r}: no such file") from None
    except OSError as error:
        raise UserError(f"data.retrieval.questions = {path!r}: {error.strerror}") from None
    if place.is_dir():
        raise UserError(f"data.retrieval.questions = {path!r}: is a folder; give a SQuAD-format JSON file")
    return _loaded(place.absolute(), about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=2)
def _loaded(path: Path, changed: int, size: int) -> Squad:
    read = list(_read(path, read_json(path)))
    paragraphs = tuple(dict.fromkeys(text for text, _ in read))
    numbers = {text: number for number, text in enumerate(paragraphs)}
    questions = [Question(numbers[text], *one) for text, questions in read for one in questions]
    sides = tuple(_side(path, paragraphs, questions, held_out) for held_out in (False, True))
    return Squad(paragraphs, (sides[0], sides[1]), hashlib.sha256(path.read_bytes()).hexdigest())


def _side(path: Path, paragraphs: tuple[str, ...], questions: list[Question], held_out: bool) -> Side:
    own = tuple(number for number, text in enumerate(paragraphs) if held_out_facts([text]) == held_out)
    here = set(own)
    kept = tuple(
        question
        for question in questions
        if question.paragraph in here
        and not holds(question.text, question.answer)
        and any(not holds(paragraphs[number], question.answer) for number in own)
    )
    if not kept:
        share = "the one in eight held out for evaluation" if held_out else "those for training"
        raise UserError(
            f"{path}: of its {len(paragraphs)} paragraphs, {share} ({len(own)}) have no question that can be asked "
            "among others that do not hold the answer; take a file with more paragraphs"
        )
    return Side(own, kept)


def _read(path: Path, values: Any) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    """Yields (paragraph, (question, answer, start) of those it answers)."""
    for article, where in _each(path, values, "data", ""):
        for paragraph, within in _each(path, article, "paragraphs", where):
            text = _value(path, paragraph, "context", within, str, "text")
            asked = []
            for one, at in _each(path, paragraph, "qas", within):
                question = _value(path, one, "question", at, str, "text").strip()
                # SQuAD 2.0 also asks what a paragraph does not answer.
                given = [_answer(path, text, *answer) for answer in _each(path, one, "answers", at)]
                if given:
                    (answer, start), _ = Counter(given).most_common(1)[0]
                    asked.append((question, answer, start))
            yield text, asked


def _answer(path: Path, context: str, value: Any, where: str) -> tuple[str, int]:
    text = _value(path, value, "text", where, str, "text")
    start = _value(path, value, "answer_start", where, int, "a whole number")
    if not text.strip():
        raise UserError(f"{path}: {where}.text is empty")
    if start < 0 or context[start : start + len(text)] != text:
        shown = context[max(0, start) :][: len(text)]
        raise UserError(f"{path}: {where}.answer_start = {start}: the context has {shown!r} there, not {text!r}")
    return text.strip(), start + len(text) - len(text.lstrip())


def _each(path: Path, value: Any, name: str, where: str) -> Iterator[tuple[Any, str]]:
    """Yields (element, its name in messages) of a list under a key."""
    place = f"{where}.{name}" if where else name
    for index, one in enumerate(_value(path, value, name, where, list, "a list")):
        yield one, f"{place}[{index}]"


def _value(path: Path, value: Any, name: str, where: str, kind: type, words: str) -> Any:
    place = f"{where}.{name}" if where else name
    if not isinstance(value, Mapping) or not isinstance(value.get(name), kind) or isinstance(value[name], bool):
        raise UserError(f"{path}: is not in SQuAD's format: {place} must be {words}")
    return value[name]
