"""Corpora, opened by a source of text: documents or tokens in a train and a validation split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from data.shards import TokenCorpus

if TYPE_CHECKING:  # TFDS is imported when a corpus is opened: building and measuring programs does not need it
    from data.tfds_sets import Texts

# Increased when the same files would be prepared differently.
FORMAT = 2


@dataclass(frozen=True)
class Corpus:
    """Documents in two splits, with their identity.

    `key` identifies the content (equal content has an equal key on every machine). `fingerprint` has `source`, `files`,
    `bytes` and `sha256` of the concatenated files (for one file: what `sha256sum` prints), `documents` and `text_bytes`
    by split, `documents_sha256` over every document's split, name and text, how the documents were split, the number of
    `duplicates` (left out of files, only counted in TFDS data sets) and of `skipped` empty or undecodable documents
    (left out), and a `listing` of the files if there are few. `validation_in_train` is the number of validation
    documents that are also training documents, if any.
    """

    key: str
    train: Texts
    validation: Texts
    fingerprint: dict[str, Any]
    cache_dir: str
    holds_text: ClassVar[bool] = True

    def split(self, name: str) -> Texts:
        """Returns the documents of `train` or `validation`."""
        return self.train if name == "train" else self.validation


@dataclass(frozen=True)
class MixedCorpus:
    """Texts and token files together; `key` and `fingerprint` as in `data.corpora.Corpus`.

    Attributes:
        names: of the texts.
        shares: of the rows that come from each; they sum to 1.
        texts: the texts.
    """

    key: str
    fingerprint: dict[str, Any]
    cache_dir: str
    names: tuple[str, ...]
    shares: tuple[float, ...]
    texts: tuple[Corpus | TokenCorpus, ...]

    @property
    def holds_text(self) -> bool:
        """Whether any of it is encoded by a tokenizer."""
        return any(one.holds_text for one in self.texts)

    @property
    def train(self) -> Iterator[str]:
        """The training documents of all texts."""
        return chain.from_iterable(one.train for one in self.texts if isinstance(one, Corpus))

    @property
    def validation(self) -> Iterator[str]:
        """The validation documents of all texts."""
        return chain.from_iterable(one.validation for one in self.texts if isinstance(one, Corpus))


Opened = Corpus | TokenCorpus | MixedCorpus


def digest(value: Any) -> str:
    """Returns the sha256 of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
