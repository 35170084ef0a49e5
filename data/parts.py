"""The validation split in two parts: one to select hyperparameters on, one that no choice was based on.

A value selected because it did well on some text did so partly by chance. So if a sweep selects (`select` in its
file), the trials are scored on the part `selection` and the claims are made on the part `test`. Training's own
validation loss, and runs that select nothing, use the whole split.

Documents are assigned to a part by a hash of their text, so that all tokenizers agree and new documents move no old
one. If a part would have less than a quarter of the text, as with one long document, each document is cut in the
middle: its first half selects, its second half tests.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.corpora import MixedCorpus, Opened
from data.shards import TokenCorpus
from data.streams import MixedStream, Stream, open_stream
from data.tokenizers import Tokenizer

WHOLE = "validation"
PARTS = ("selection", "test")
SPLITS = (WHOLE, *PARTS)
LEAST = 0.25  # minimum share of the text in each part; below it documents are cut


@dataclass(frozen=True)
class Part:
    """A part of a split, in memory, with the attributes of a stream (`data.streams.TokenStream`)."""

    tokens: np.ndarray
    starts: np.ndarray
    byte_counts: np.ndarray | None
    separated: bool
    split: str = WHOLE
    bytes_per_token: float | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def open_split(corpus: Opened, tokenizer: Tokenizer | None, name: str) -> Stream | Part:
    """Returns the validation split (WHOLE) or one of its PARTS as tokens.

    Raises:
        UserError: a document cannot be encoded, or the split has no token.
    """
    whole = open_stream(corpus, tokenizer, WHOLE)
    if name == WHOLE:
        return whole
    if isinstance(corpus, MixedCorpus):  # so that each text is in both parts
        return MixedStream(corpus.names, [open_split(one, tokenizer, name) for one in corpus.texts], WHOLE)
    return part(whole, None if isinstance(corpus, TokenCorpus) else corpus.validation, name)


def part(stream: Stream, texts: Sequence[str] | None, name: str) -> Part:
    """Returns one of PARTS of the validation split.

    Args:
        stream: the whole split's tokens.
        texts: its documents, in the same order; None: a document is hashed by its tokens, and its size is their number.
        name: which part.
    """
    ends = stream.starts
    spans = list(itertools.pairwise(ends.tolist()))
    contents = (
        (text.encode() for text in texts)
        if texts is not None
        else (stream.tokens[a:b].astype("<u4").tobytes() for a, b in spans)
    )
    selects = np.array([hashlib.sha256(content).digest()[0] < 128 for content in contents], bool)
    sizes = np.array([_sizes(stream, a, b).sum(dtype=np.int64) for a, b in spans])
    share = sizes[selects].sum() / max(1, sizes.sum())
    if LEAST <= share <= 1 - LEAST:
        expected = np.flatnonzero(selects == (name == "selection"))
        return _joined(stream, [(int(ends[index]), int(ends[index + 1]), False) for index in expected])
    pieces = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        counted = np.cumsum(_sizes(stream, start, end), dtype=np.int64)
        middle = start + int(np.searchsorted(counted, counted[-1] / 2, "right")) if end > start else start
        pieces.append((start, middle, stream.separated) if name == "selection" else (middle, end, False))
    return _joined(stream, pieces)


def _sizes(stream: Stream, start: int, end: int) -> np.ndarray:
    """Returns the weight of each token in a document's size: its bytes, or 1 if they are unknown."""
    return np.ones(end - start, np.int64) if stream.byte_counts is None else stream.byte_counts[start:end]


def _joined(stream: Stream, pieces: Sequence[tuple[int, int, bool]]) -> Part:
    """Returns pieces [start, end) of a stream as one; True ends a piece with a separator, the stream's last token."""
    starts = np.cumsum([0, *(end - start + ended for start, end, ended in pieces)], dtype=np.int64)

    def cut(values: Any) -> np.ndarray:
        results = []
        for start, end, ended in pieces:
            results += [values[start:end], values[-1:]] if ended else [values[start:end]]
        return np.concatenate(results) if results else np.zeros(0, np.uint32)

    counts = None if stream.byte_counts is None else cut(stream.byte_counts)
    return Part(cut(stream.tokens), starts, counts, stream.separated, bytes_per_token=stream.bytes_per_token)
