"""Passkey retrieval (PI, 2306.15595; YaRN, 2309.00071): one number in repeated noise, asked for at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import UserError
from data import seeding
from data.tokenizers import Tokenizer

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NEEDLE = "The pass key is {key}. Remember it. "
QUERY = "What is the pass key? The pass key is"
# With its space, so that tokenizers which join the two see the number here as they see it in the needle.
ANSWER = " {key}"


@dataclass(frozen=True)
class Passkey:
    """Rows of the task, each `length` tokens, the answer last.

    Attributes:
        tokens: int32 [n, length]; the last `answer` tokens of each row are its number, a space before it.
        answer: int32 [n], how many tokens that takes.
        keys: the numbers.
        depth: float [n], where the needle really begins: tokens before it / tokens of noise (0 without noise).
        needle: int32 [n, 2], the needle's first token and the one behind its last.
    """

    tokens: np.ndarray
    answer: np.ndarray
    keys: Sequence[str]
    depth: np.ndarray
    needle: np.ndarray


def shortest(tokenizer: Tokenizer, digits: int = 5) -> int:
    """Returns the tokens that needle, query and answer need with no noise at all (of a number of nines)."""
    key = "9" * digits
    return sum(len(tokenizer.encode(text)) for text in (NEEDLE.format(key=key), QUERY, ANSWER.format(key=key)))


def rows(
    tokenizer: Tokenizer, *, seed: int, first: int, count: int, length: int, depth: float, digits: int = 5
) -> Passkey:
    """Returns rows `first` .. `first + count - 1` for one length and depth, each a function of (seed, its number).

    Parts are tokenised apart and joined as tokens, so that a row is as long as asked to the token and the needle is
    never cut. The noise repeats one passage; it is cut at its beginning, so that its end is a sentence's.

    Args:
        tokenizer: the run's.
        seed: of the numbers.
        first: number of the first row.
        count: how many rows.
        length: tokens a row, the answer included.
        depth: 0 (needle first) .. 1 (right before the query).
        digits: of the number; its first is not 0.

    Raises:
        UserError: the length does not hold needle, query and answer; the tokenizer lacks a character of the text.
    """
    noise_unit = tokenizer.encode(NOISE)
    query = tokenizer.encode(QUERY)
    key_words = seeding.random_words(seeding.philox_key(seed, seeding.PASSKEY), first, count, 1)[:, 0]
    keys = [str(10 ** (digits - 1) + int(word % np.uint64(9 * 10 ** (digits - 1)))) for word in key_words]
    tokens = np.empty((count, length), np.int32)
    answers, depths, needles = np.empty(count, np.int32), np.empty(count), np.empty((count, 2), np.int32)
    for index, key in enumerate(keys):
        needle, answer = tokenizer.encode(NEEDLE.format(key=key)), tokenizer.encode(ANSWER.format(key=key))
        room = length - len(needle) - len(query) - len(answer)
        if room < 0:
            raise UserError(
                f"a passkey row of {length} tokens is too short: needle, query and answer take {length - room}"
            )
        before = round(depth * room)
        repeats = -(-room // len(noise_unit))
        noise = np.tile(noise_unit, repeats)[repeats * len(noise_unit) - room :]
        tokens[index] = np.concatenate([noise[:before], needle, noise[before:], query, answer])
        answers[index], depths[index] = len(answer), before / room if room else 0.0
        needles[index] = before, before + len(needle)
    return Passkey(tokens, answers, keys, depths, needles)
