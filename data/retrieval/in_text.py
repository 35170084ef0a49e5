"""The base of tasks in words: a row is an introduction, a haystack with needles, a question and its answers.

Parts are tokenized separately and joined as tokens: a row has exactly the requested length, needles are never cut, a
depth grid of any resolution is exact, and an answer's tokens are those of its needle, for every tokenizer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.errors import UserError
from data import seeding
from data.retrieval.draws import ATTEMPTS, Dice, Draw, held_out_facts, too_few
from data.retrieval.haystacks import Encoder, Hay, Haystack
from data.retrieval.rows import Rows
from data.retrieval.tokens import numbers

WORDS = 32  # random words drawn for all rows at once: enough for most rows
Needle = tuple[str, ...]  # its pieces, tokenized separately; what may be asked for is a piece


@dataclass(frozen=True)
class Sample:
    """The content of one row, in words.

    Attributes:
        needles: in the order of the chain, if there is one.
        answers: (text as in the needle, number of the needle it is in), in the order of the question.
        question: pieces of text after the haystack.
        facts: the row's content, for the split into training and evaluation.
        drawn: (random string, maximum bytes of its kind), each a piece except for a space before it.
        unique: strings that the haystack must not contain, because they would be further answers.
        introduction: before the haystack.
        between: what separates two answers.
        as_told: answers are in the order of their needles in the row, not of the question.
    """

    needles: tuple[Needle, ...]
    answers: tuple[tuple[str, int], ...]
    question: Needle
    facts: tuple[str, ...]
    drawn: tuple[tuple[str, int], ...]
    unique: tuple[str, ...]
    introduction: str = ""
    between: str = ""
    as_told: bool = False


@dataclass(frozen=True)
class TextTask:
    """A task in words; each kind defines the content of a row (`sample`) and its distractors.

    Attributes:
        encode: the tokenizer.
        haystack: where needles are inserted.
        needles: per row, if it can vary.
        short: the short form.
    """

    encode: Encoder
    haystack: Haystack
    needles: int = 1
    short: bool = False
    all_depths: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The task's name."""
        raise NotImplementedError

    @property
    def chained(self) -> bool:
        """Whether the needles keep their order in the row."""
        return False

    def most(self) -> int | None:
        """Returns the only possible number of needles, or None if any is."""
        return None

    def sample(self, dice: Dice, needles: int) -> Sample:
        """Returns the content of a row with `needles` needles."""
        raise NotImplementedError

    def distractor(self, dice: Dice, sample: Sample) -> Needle:
        """Returns a needle that is unrelated to the sample's question."""
        raise NotImplementedError

    def distractors(self, dice: Dice, sample: Sample) -> Callable[[], Needle]:
        """Returns what gives another distractor of one row at each call."""
        return lambda: self.distractor(dice, sample)

    def no_row(self) -> UserError:
        """Returns the error where no row was found in `ATTEMPTS` draws."""
        if self.haystack.kind == "text":
            return UserError(
                f"{self.name}: {ATTEMPTS} draws gave no row whose text does not already contain a needle's words; "
                "raise data.retrieval.letters or data.retrieval.digits, or use the full form"
            )
        return too_few()

    def alphabet(self) -> tuple[str, ...]:
        """Returns pieces that contain every character a random key or value may have."""
        raise NotImplementedError

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        raise NotImplementedError

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
        most = self.most() or needles or self.needles
        key = draw.key(self.name)
        # The number of needles is kept when the rest is drawn again.
        drawn = numbers(key, first, count, most, vary).tolist()
        words = seeding.random_words(key, first, count, WORDS).tolist()
        results = []
        for index in range(count):
            dice = Dice(key, first + index, 0, words[index])
            results.append(self._row(key, first + index, dice, draw.held_out, length, drawn[index], depth))
        return joined(results, length)

    def shortest(self, needles: int | None = None) -> int:
        """See `rows.Task`: a random piece of text counts one token per byte."""
        most = self.most() or needles or self.needles
        return max(self._longest(self.sample(Dice(np.zeros(2, np.uint64), 0, 0), number)) for number in {1, most})

    def _longest(self, sample: Sample) -> int:
        drawn = dict(sample.drawn)

        def size(piece: str) -> int:
            text = piece.lstrip()
            return len(piece) - len(text) + drawn[text] if text in drawn else len(self.encode(piece))

        pieces = [piece for needle in sample.needles for piece in needle]
        pieces += [sample.introduction, *sample.question, *(text for text, _ in sample.answers)]
        return sum(map(size, pieces)) + (len(sample.answers) - 1) * size(sample.between)

    def _row(
        self,
        key: np.ndarray,
        row: int,
        dice: Dice,
        held_out: bool,
        length: int,
        needles: int,
        depth: float | None,
    ) -> "Laid":
        for attempt in range(ATTEMPTS):
            dice = Dice(key, row, attempt) if attempt else dice
            sample = self.sample(dice, needles)
            if held_out_facts(sample.facts) != held_out:
                continue
            laid = self._lay_out(dice, sample, length, needles, depth)
            if laid is not None:
                return laid
        raise self.no_row()

    def _lay_out(self, dice: Dice, sample: Sample, length: int, number: int, depth: float | None) -> "Laid | None":
        """Lays out a sample as a row; None if the haystack happens to contain what must be unique."""
        encode = self.encode
        needles = [encode.joined(pieces) for pieces in sample.needles]
        introduction, question = encode(sample.introduction), encode.joined(sample.question)
        answers, between = [encode(text) for text, _ in sample.answers], encode(sample.between)
        end = sum(map(len, answers)) + (len(answers) - 1) * len(between)
        room = length - len(introduction) - sum(map(len, needles)) - len(question) - end
        if room < 0:
            raise UserError(f"a row of {length} tokens is too short for {self.name}: this one needs {length - room}")
        another = self.distractors(dice, sample)
        hay = self.haystack.fill(dice, room, lambda: encode.joined(another()))
        if self.haystack.kind == "text":
            text = encode.tokenizer.decode(hay.tokens)
            if any(word in text for word in sample.unique):
                return None
        offsets = self._places(dice, hay, len(needles), sorted({needle for _, needle in sample.answers}), depth)
        message = sorted(range(len(needles)), key=lambda needle: (offsets[needle], needle))
        parts, at, spans = [introduction], len(introduction), np.zeros((len(needles), 2), np.int32)
        cut = 0
        for needle in message:
            parts += [hay.tokens[cut : offsets[needle]], needles[needle]]
            at += offsets[needle] - cut + len(needles[needle])
            cut = offsets[needle]
            spans[needle] = at - len(needles[needle]), at
        parts += [hay.tokens[cut:], question]
        order = list(range(len(answers)))
        if sample.as_told:
            order.sort(key=lambda answer: message.index(sample.answers[answer][1]))
        at = prompt = length - end
        answered = []
        for place, answer in enumerate(order):
            if place:
                parts.append(between)
                at += len(between)
            parts.append(answers[answer])
            answered.append((at, at + len(answers[answer])))
            at += len(answers[answer])
        depths = [offsets[sample.answers[answer][1]] / room if room else 0.0 for answer in order]
        references = tuple(sample.answers[answer][0].strip() for answer in order)
        ends = [_nearest(sample, spans, reference) for reference in references]
        distances = np.array([begin - (end - 1) for (begin, _), end in zip(answered, ends, strict=True)])
        return Laid(
            np.concatenate(parts), np.array(answered), np.array(depths), spans, prompt, number, references, distances
        )

    def _places(self, dice: Dice, hay: Hay, count: int, requested: Sequence[int], depth: float | None) -> list[int]:
        """Returns the haystack tokens before each needle: a requested one at the depth, the others anywhere."""
        places = [hay.anywhere(dice) for _ in range(count)]
        if depth is not None:
            places[requested[dice.below(len(requested))]] = hay.offset(depth)
        return sorted(places) if self.chained else places


def _nearest(sample: Sample, spans: np.ndarray, answer: str) -> int:
    """Returns the end of the last needle that contains an answer, among needles at `spans` [N, 2]."""
    holding = [k for k, needle in enumerate(sample.needles) if any(piece.strip() == answer for piece in needle)]
    return int(spans[holding, 1].max())


@dataclass(frozen=True)
class Laid:
    """One row, laid out; see `Rows`."""

    tokens: np.ndarray
    spans: np.ndarray
    depths: np.ndarray
    needles: np.ndarray
    prompt: int
    number: int
    references: tuple[str, ...]
    distances: np.ndarray


def joined(rows: Sequence[Laid], length: int) -> Rows:
    """Stacks rows of one length."""
    count = len(rows)
    answers, needles = max(len(row.spans) for row in rows), max(len(row.needles) for row in rows)
    tokens, depths = np.empty((count, length), np.int32), np.full((count, answers), np.nan)
    spans, message = np.zeros((count, answers, 2), np.int32), np.zeros((count, needles, 2), np.int32)
    distances = np.zeros((count, answers), np.int32)
    for index, row in enumerate(rows):
        tokens[index] = row.tokens
        spans[index, : len(row.spans)], depths[index, : len(row.depths)] = row.spans, row.depths
        message[index, : len(row.needles)] = row.needles
        distances[index, : len(row.distances)] = row.distances
    prompts = np.array([row.prompt for row in rows], np.int32)
    return Rows(
        tokens=tokens,
        spans=spans,
        depths=depths,
        needles=message,
        scored=np.arange(length) >= prompts[:, None],
        prompts=prompts,
        ends=np.full(count, length, np.int32),
        pairs=np.array([row.number for row in rows], np.int32),
        references=tuple(row.references for row in rows),
        distances=distances,
    )


def number(dice: Dice, digits: int) -> str:
    """Returns a number with this many digits; the first is not 0."""
    low = 10 ** (digits - 1)
    return str(low + dice.below(9 * low))


def letters(dice: Dice, count: int, alphabet: str) -> str:
    """Returns this many letters."""
    return "".join(alphabet[dice.below(len(alphabet))] for _ in range(count))
