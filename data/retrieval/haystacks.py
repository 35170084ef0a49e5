"""Haystacks: repeated noise, the run's own text, or further needles that are never asked for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from configs.errors import UserError
from data.retrieval.draws import Dice
from data.streams import Stream
from data.tokenizers import Tokenizer

# PI's sentences (2306.15595, section 3.3.1). Each includes the space before it, as tokenizers that join the two see
# it inside a text.
NOISE = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


APART = "\n\x01\x02"  # characters that hardly any token joins to the next


class Encoder:
    """Tokens of pieces of text, each encoded separately, so that an answer's tokens are those of its needle.

    Tokenizers like SentencePiece put a space before every text, which in the middle of a row would be one too many; for
    these, a piece's tokens are those after a character that it does not join. Frequent pieces are cached; copies sent
    to other processes start with an empty cache.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._kept: dict[str, np.ndarray] = {}
        self._before = {mark: tokenizer.encode(mark) for mark in APART} if _spaces(tokenizer) else {}

    def __reduce__(self) -> tuple[type, tuple[Tokenizer]]:
        return Encoder, (self.tokenizer,)

    def __call__(self, piece: str) -> np.ndarray:
        """Returns the ids of a piece, int32 [n]."""
        result = self._kept.get(piece)
        if result is None:
            if len(self._kept) > 4096:
                self._kept.clear()
            result = self._kept[piece] = self._encoded(piece)
        return result

    def _encoded(self, piece: str) -> np.ndarray:
        for mark, ids in self._before.items() if piece else ():
            result = self.tokenizer.encode(mark + piece)
            if np.array_equal(result[: len(ids)], ids):
                return result[len(ids) :]
        return self.tokenizer.encode(piece)

    def joined(self, pieces: tuple[str, ...]) -> np.ndarray:
        """Returns the ids of concatenated pieces."""
        return np.concatenate([self(piece) for piece in pieces])

    def check(self, name: str, pieces: Iterable[str]) -> None:
        """Refuses a tokenizer that does not reproduce pieces of text, up to spaces and case.

        Raises:
            UserError: with the task and what the tokenizer cannot encode.
        """
        for piece in pieces:
            try:
                back = self.tokenizer.decode(self(piece))
            except UserError as error:
                raise UserError(f"{name}: the tokenizer cannot encode {piece.strip()!r}: {error}") from error
            if _plain(back) != _plain(piece):
                raise UserError(f"{name}: the tokenizer decodes {piece.strip()!r} to {back.strip()!r}")


def _plain(text: str) -> str:
    """The text without spaces and case, which tokenizers may change and answers do not depend on."""
    return "".join(text.split()).casefold()


def _spaces(tokenizer: Tokenizer) -> bool:
    """Returns whether a tokenizer puts a space before every text."""
    if tokenizer.describe()["kind"] != "file":
        return False
    zero = tokenizer.encode("0")
    return tokenizer.decode(np.concatenate([zero, zero])) == "0 0"


@dataclass(frozen=True)
class Hay:
    """A haystack of `room` tokens.

    Attributes:
        tokens: int32 [room].
        cuts: int64 [n], where a needle may be inserted, increasing, from the first index to `room`; None: between any
            two tokens.
    """

    tokens: np.ndarray
    cuts: np.ndarray | None = None

    def offset(self, depth: float) -> int:
        """Returns the tokens before a needle at a depth in 0 .. 1: the nearest possible cut."""
        if self.cuts is None:
            return round(depth * len(self.tokens))
        return int(self.cuts[np.argmin(np.abs(self.cuts - depth * len(self.tokens)))])

    def anywhere(self, dice: Dice) -> int:
        """Returns the tokens before a needle at a uniformly drawn cut."""
        if self.cuts is None:
            return dice.below(len(self.tokens) + 1)
        return int(self.cuts[dice.below(len(self.cuts))])


class Haystack(Protocol):
    """`fill` returns a haystack of exactly `room` tokens; `kind` is its name; `own` is whether it is real text."""

    kind: str

    def fill(self, dice: Dice, room: int, distractor: Callable[[], np.ndarray]) -> Hay:
        """Returns a haystack; each call of `distractor` returns the tokens of another needle."""


class Noise:
    """One repeated passage, cut at its beginning, so that it ends at the end of a sentence."""

    kind = "noise"

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode

    def fill(self, dice: Dice, room: int, distractor: Callable[[], np.ndarray]) -> Hay:
        """See `Haystack`; nothing is random."""
        return Hay(self._tail(room))

    def _tail(self, room: int) -> np.ndarray:
        passage = self._encode(NOISE)
        repeats = -(-room // len(passage))
        return np.tile(passage, repeats)[repeats * len(passage) - room :]


class Text:
    """A span of one split of the run's text, from anywhere in it; the text is a ring."""

    kind = "text"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def fill(self, dice: Dice, room: int, distractor: Callable[[], np.ndarray]) -> Hay:
        """See `Haystack`."""
        size = len(self._stream)
        start = dice.below(size)
        if start + room <= size:
            return Hay(np.asarray(self._stream.tokens[start : start + room]).astype(np.int32))
        return Hay(self._stream.tokens[(start + np.arange(room)) % size].astype(np.int32))


class Distractors(Noise):
    """Whole needles only; the remaining tokens, fewer than a needle's, are noise before the first."""

    kind = "distractors"

    def fill(self, dice: Dice, room: int, distractor: Callable[[], np.ndarray]) -> Hay:
        """See `Haystack`; needles are inserted between two others."""
        results: list[np.ndarray] = []
        left = room
        while left:
            made = distractor()
            if len(made) > left:
                break
            results.append(made)
            left -= len(made)
        cuts = left + np.concatenate([[0], np.cumsum([len(made) for made in results])]).astype(np.int64)
        return Hay(np.concatenate([self._tail(left), *results]).astype(np.int32), cuts)
