"""Random rows: each a function of (seed, task, stage, row number), on one side of the train/evaluation split.

Training and evaluation are disjoint: a hash of a row's content (its keys and values, in a canonical order) assigns one
in eight of all possible rows to evaluation and the rest to training, for every seed, stage, length and depth. Their
random numbers differ as well: they use different keys of a counter-based generator.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import UserError
from data import seeding

EVALUATION_SHARE = 8  # one row in this many is held out
ATTEMPTS = 512  # draws per row before an error


@dataclass(frozen=True)
class Draw:
    """Which rows are drawn.

    Attributes:
        seed: the run's.
        stage: of the curriculum; each stage draws different rows.
        held_out: evaluation rows, whose content no training row has.
    """

    seed: int
    stage: int = 0
    held_out: bool = False

    def key(self, task: str, part: int = 0) -> np.ndarray:
        """Returns the key of a task's counter-based generator, uint64 [2]; each `part` is independent."""
        purpose = seeding.TASK_EVAL if self.held_out else seeding.TASK_TRAIN
        return seeding.philox_key(self.seed, purpose, zlib.crc32(task.encode()), self.stage, part)


class Dice:
    """Random numbers of one row, from raw words of Philox, so that no library version changes a row.

    `words` are the first ones, if they were drawn for many rows at once; further ones use another counter.
    """

    def __init__(self, key: np.ndarray, row: int, attempt: int, words: Sequence[int] = ()) -> None:
        self._key, self._counter = key, [0, 1, attempt, row]
        self._next = iter(words).__next__

    def below(self, limit: int) -> int:
        """Returns a number in 0 .. limit - 1."""
        try:
            return self._next() % limit
        except StopIteration:
            self._next = np.random.Philox(key=self._key, counter=np.array(self._counter, np.uint64)).random_raw
            return self._next() % limit

    def distinct(self, make: Callable[["Dice"], str], count: int, taken: Iterable[str] = ()) -> list[str]:
        """Returns `count` strings from `make`, all different and none in `taken`.

        Raises:
            UserError: there are too few different strings.
        """
        seen, result = set(taken), list[str]()
        for _ in range(64 * count + 1024):
            if len(result) == count:
                return result
            made = make(self)
            if made not in seen:
                seen.add(made)
                result.append(made)
        raise UserError(
            f"a row needs {count} different keys or values such as {make(self)!r}, but fewer exist; raise "
            "data.retrieval.letters or data.retrieval.digits"
        )


def held_out_facts(facts: Sequence[str]) -> bool:
    """Returns whether a row with these facts, in any order, belongs to evaluation."""
    digest = hashlib.blake2b("\0".join(sorted(facts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % EVALUATION_SHARE == 0


def held_out_words(words: np.ndarray) -> np.ndarray:
    """Returns whether rows with these content hashes belong to evaluation: uint64 [n] to bool [n]."""
    return seeding.mix(words) % np.uint64(EVALUATION_SHARE) == 0


Arrays = tuple[np.ndarray, ...]


def settled(
    make: Callable[[int, int, int], Arrays], content: Callable[[Arrays], np.ndarray], count: int, held_out: bool
) -> Arrays:
    """Draws each row again until it is on the requested side; rows do not depend on one another.

    Args:
        make: (first, rows, attempt) to arrays [rows, ...], each row a function of its number and the attempt.
        content: from those arrays to a hash of each row's content, uint64 [rows].
        count: number of rows; `make` gets numbers 0 .. count - 1.
        held_out: the side.

    Raises:
        UserError: no such rows were drawn.
    """
    drawn = make(0, count, 0)
    wrong = held_out_words(content(drawn)) != held_out
    for attempt in range(1, ATTEMPTS):
        if not wrong.any():
            return drawn
        # From the first wrong row to the last: redrawing some needlessly costs less than one generator per row.
        low, high = int(np.argmax(wrong)), len(wrong) - int(np.argmax(wrong[::-1]))
        again = make(low, high - low, attempt)
        for old, new in zip(drawn, again, strict=True):
            old[low:high][wrong[low:high]] = new[wrong[low:high]]
        wrong = wrong & (held_out_words(content(drawn)) != held_out)
    raise too_few()


def too_few() -> UserError:
    """Returns the error of a task with too few different rows for a held-out set."""
    return UserError(
        "the task has too few different rows to hold some of them out; use a larger vocabulary, more digits or letters"
    )
