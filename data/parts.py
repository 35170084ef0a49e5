"""The validation split in two parts: text to choose hyperparameters on, and text that nothing has been chosen by.

A value that was chosen because it did well on some text did so partly by luck with that text. So where a sweep selects
(`select` in its file), the trials are scored on the part `selection` and the claims are made on the part `test`.
Training's own validation loss, and every run that selects nothing, read the whole split as ever.

Documents go to a part by a hash of their text, so that all tokenizers agree and new documents move no old one. Where
that would leave a part with less than a quarter of the text, as of one long document, each document is cut in its
middle: its first half selects, its second half tests.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.corpora import Corpus
from data.streams import TokenStream, open_stream
from data.tokenizers import Tokenizer

WHOLE = "validation"
PARTS = ("selection", "test")
SPLITS = (WHOLE, *PARTS)
LEAST = 0.25  # of the text, in each part, or documents are cut


@dataclass(frozen=True)
class Part:
    """A part of a split in memory, with a stream's attributes (`data.streams.TokenStream`)."""

    tokens: np.ndarray
    starts: np.ndarray
    byte_counts: np.ndarray
    separated: bool
    split: str = WHOLE

    def __len__(self) -> int:
        return len(self.tokens)


def open_split(corpus: Corpus, tokenizer: Tokenizer, name: str) -> TokenStream | Part:
    """Returns the validation split (WHOLE) or one of its PARTS as tokens.

    Raises:
        UserError: a document cannot be encoded, or the split comes to no token at all.
    """
    whole = open_stream(corpus, tokenizer, WHOLE)
    return whole if name == WHOLE else part(whole, corpus.validation, name)


def part(stream: TokenStream, texts: Sequence[str], name: str) -> Part:
    """Returns one of PARTS of the validation split.

    Args:
        stream: the whole split's tokens.
        texts: its documents, in the same order.
        name: which part.
    """
    selects = np.array([hashlib.sha256(text.encode()).digest()[0] < 128 for text in texts], bool)
    ends = stream.starts
    sizes = np.array([stream.byte_counts[a:b].sum(dtype=np.int64) for a, b in itertools.pairwise(ends)])
    share = sizes[selects].sum() / max(1, sizes.sum())
    if LEAST <= share <= 1 - LEAST:
        wanted = np.flatnonzero(selects == (name == "selection"))
        return _joined(stream, [(int(ends[index]), int(ends[index + 1]), False) for index in wanted])
    pieces = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        counted = np.cumsum(stream.byte_counts[start:end], dtype=np.int64)
        middle = start + int(np.searchsorted(counted, counted[-1] / 2, "right")) if end > start else start
        pieces.append((start, middle, stream.separated) if name == "selection" else (middle, end, False))
    return _joined(stream, pieces)


def _joined(stream: TokenStream, pieces: Sequence[tuple[int, int, bool]]) -> Part:
    """Returns pieces [start, end) of a stream as one; True ends a piece with a separator, the stream's last token."""
    tokens, counts, starts = [], [], [0]
    for start, end, ended in pieces:
        tokens += [stream.tokens[start:end], stream.tokens[-1:]] if ended else [stream.tokens[start:end]]
        counts += [stream.byte_counts[start:end], stream.byte_counts[-1:]] if ended else [stream.byte_counts[start:end]]
        starts.append(starts[-1] + end - start + ended)
    whole = [np.concatenate(one) if one else np.zeros(0, np.uint32) for one in (tokens, counts)]
    return Part(whole[0], np.array(starts, np.int64), whole[1], stream.separated)
