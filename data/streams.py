"""Each split of a corpus as one array of tokens, encoded once and memory-mapped from the cache."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from data import cache
from data.corpora import Corpus, digest
from data.shards import ShardStream, TokenCorpus
from data.tokenizers import Tokenizer

# Raised when the same documents and tokenizer would be laid out otherwise.
FORMAT = 1


class TokenStream:
    """One split: the documents' tokens one after the other, each followed by the separator if there is one.

    Attributes:
        tokens: unsigned [N], memory-mapped.
        starts: int64 [documents + 1], where each document begins; the last is N.
        byte_counts: uint32 [N], the UTF-8 bytes of text each token stands for, 0 for separators; validation only.
        bytes_per_token: None: `byte_counts` has them.
        separated: whether documents end with a separator.

    It is opened anew, not copied, when sent to another process.
    """

    bytes_per_token: float | None = None

    def __init__(self, folder: Path, split: str) -> None:
        self._folder = folder
        self.split = split
        self._about = json.loads((folder / f"{split}.json").read_text(encoding="utf-8"))
        self.separated: bool = self._about["separated"]

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStream, (self._folder, self.split)

    @cached_property
    def tokens(self) -> np.ndarray:
        """See the class."""
        return np.memmap(self._folder / f"{self.split}.tokens", self._about["dtype"], "r")

    @cached_property
    def starts(self) -> np.ndarray:
        """See the class."""
        return np.load(self._folder / f"{self.split}.starts.npy")

    @cached_property
    def byte_counts(self) -> np.ndarray:
        """See the class."""
        return np.memmap(self._folder / f"{self.split}.bytes", np.uint32, "r")

    def __len__(self) -> int:
        return self._about["tokens"]


Stream = TokenStream | ShardStream


def open_stream(corpus: Corpus | TokenCorpus, tokenizer: Tokenizer | None, split: str) -> Stream:
    """Returns `train` or `validation` as tokens; text is encoded first where the cache does not hold its tokens.

    Args:
        corpus: text or token files.
        tokenizer: None: only of token files.
        split: which.

    Raises:
        UserError: a document cannot be encoded, the split comes to no token at all, or an id is not in the vocabulary.
    """
    if isinstance(corpus, TokenCorpus):
        return corpus.stream(tokenizer, split)
    assert tokenizer is not None, "text needs a tokenizer"
    key = digest([FORMAT, corpus.key, tokenizer.describe()])
    folder = cache.private_folder(corpus.cache_dir, "tokens") / f"{key[:20]}-{split}"
    cache.entry(folder, lambda work: _encode(work, corpus, tokenizer, split))
    stream = TokenStream(folder, split)
    if not len(stream):
        raise UserError(f"the {split} split comes to no token with this tokenizer")
    return stream


def _encode(folder: Path, corpus: Corpus, tokenizer: Tokenizer, split: str) -> None:
    dtype = np.uint8 if tokenizer.vocab_size <= 2**8 else np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    end = [] if tokenizer.separator is None else [tokenizer.separator]
    starts = [0]
    with (folder / f"{split}.tokens").open("wb") as tokens, (folder / f"{split}.bytes").open("wb") as counts:
        for ids, byte_counts in tokenizer.encode_all(corpus.split(split)):
            tokens.write(np.append(ids, end).astype(dtype).tobytes())
            if split == "validation":
                counts.write(np.append(byte_counts, [0] * len(end)).astype(np.uint32).tobytes())
            starts.append(starts[-1] + len(ids) + len(end))
    np.save(folder / f"{split}.starts.npy", np.array(starts, np.int64))
    about = {"tokens": starts[-1], "dtype": np.dtype(dtype).name, "separated": bool(end)}
    (folder / f"{split}.json").write_text(json.dumps(about), encoding="utf-8")
