"""The protocol of a retrieval task: rows of tokens, their answers' positions, and the positions they refer to."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from data.retrieval.draws import Draw


@dataclass(frozen=True)
class Rows:
    """n rows of one task, all of one length, with up to A answers and N needles.

    Attributes:
        tokens: int32 [n, length].
        spans: int32 [n, A, 2], [first, end) of each answer; (0, 0) where a row has fewer.
        depths: float [n, A], where the answer's source begins: 0 (start of the haystack) .. 1 (its end), counted in
            tokens of haystack or, for tasks of pairs, in pairs; NaN where a row has fewer.
        needles: int32 [n, N, 2], the tokens of everything that could be asked for; (0, 0) where a row has fewer.
        scored: bool [n, length], the tokens of answers and of the separators between them.
        prompts: int32 [n], the tokens before those to be generated, which are the rest of the row up to `ends`.
        ends: int32 [n], the end of the last answer.
        pairs: int32 [n], the number of needles, pairs, hops or tokens in each row.
        references: for each row the answers as text (token numbers, for tasks in bare tokens).
        distances: int32 [n, A], tokens from the end of the nearest copy of the answer's source (the last token of its
            pair, needle or segment) to the answer's first token; 0 where a row has fewer.
    """

    tokens: np.ndarray
    spans: np.ndarray
    depths: np.ndarray
    needles: np.ndarray
    scored: np.ndarray
    prompts: np.ndarray
    ends: np.ndarray
    pairs: np.ndarray
    references: tuple[tuple[str, ...], ...]
    distances: np.ndarray

    def batch(self, answer_weight: float = 1.0, text_weight: float = 0.0) -> dict[str, np.ndarray]:
        """Returns tokens, targets int32 and weights float32, [n, length - 1]; weights are those of the targets."""
        weights = np.where(self.scored[:, 1:], np.float32(answer_weight), np.float32(text_weight))
        return {"tokens": self.tokens[:, :-1], "targets": self.tokens[:, 1:], "weights": weights}


class Task(Protocol):
    """A task, built once from the config, the tokenizer and the text.

    Attributes:
        name: as in `config.data.weights`.
        needles: default number of needles, pairs, hops or tokens per row.
        all_depths: a row's answers cover all depths at once, and `depth` is not accepted.
    """

    @property
    def name(self) -> str:
        """See the class."""

    @property
    def needles(self) -> int:
        """See the class."""

    @property
    def all_depths(self) -> bool:
        """See the class."""

    def shortest(self, needles: int | None = None) -> int:
        """Returns the maximum number of tokens that a row with `needles` needles takes, without any haystack."""

    def chance(self, needles: int | None = None) -> float:
        """Returns the share of answers that uniform guessing among all possible values gets right."""

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
        """Returns rows first .. first + count - 1, each a function of (draw, its number) and the setting.

        Args:
            draw: seed, stage, and whether for training or evaluation.
            first: number of the first row.
            count: how many.
            length: exact number of tokens per row.
            needles: needles (pairs, hops, tokens) per row; None: the task's default.
            depth: 0 .. 1, of the requested needle, or one of them; None: anywhere, drawn uniformly.
            vary: draw the number of needles uniformly from 1 .. needles, as training does.

        Raises:
            UserError: the length is too short.
        """


def same_spans(columns: np.ndarray, valid: np.ndarray, size: int = 1) -> np.ndarray:
    """Returns spans [n, A, 2] of `size` tokens from their first columns int [n, A]; (0, 0) where not valid."""
    spans = np.stack([columns, columns + size], axis=2)
    return np.where(valid[:, :, None], spans, 0).astype(np.int32)
