"""Each split of a corpus as one array of tokens, encoded once and memory-mapped from the cache."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from data import cache
from data.corpora import Corpus, MixedCorpus, Opened, digest
from data.shards import ShardStream, TokenCorpus
from data.tokenizers import Tokenizer

# Increased when the same documents and tokenizer would be laid out differently.
FORMAT = 1


class TokenStream:
    """One split: the concatenated tokens of the documents, each followed by the separator if there is one.

    Attributes:
        tokens: unsigned [N], memory-mapped.
        starts: int64 [documents + 1], where each document begins; the last is N.
        byte_counts: uint32 [N], the UTF-8 bytes of text in each token, 0 for separators; validation only.
        bytes_per_token: None: `byte_counts` has them.
        separated: whether documents end with a separator.

    It is reopened, not copied, when sent to another process.
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


class Concatenated:
    """Concatenated arrays, as an array [N] that is read when it is indexed: by slices or indices."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        self.dtype = np.result_type(*(array.dtype for array in arrays))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, key: Any) -> np.ndarray:
        if not isinstance(key, slice):
            return self._gather(np.asarray(key))
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self._gather(np.arange(start, stop, step))
        results, first = [], 0
        for array, end in zip(self._arrays, self._ends.tolist(), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                results.append(np.asarray(array[low - first : high - first]).astype(self.dtype, copy=False))
            first = end
        return np.concatenate(results) if results else np.zeros(0, self.dtype)

    def _gather(self, places: np.ndarray) -> np.ndarray:
        places = np.where(places < 0, places + len(self), places)
        numbers = np.searchsorted(self._ends, places, "right")
        result = np.empty(places.shape, self.dtype)
        for number in np.unique(numbers):
            here = numbers == number
            first = int(self._ends[number]) - len(self._arrays[number])
            result[here] = self._arrays[number][places[here] - first]
        return result


class MixedStream:
    """One split of a mixture: the texts' concatenated tokens, with the attributes of `TokenStream`.

    Attributes:
        names: of the texts.
        texts: each one's stream.
        bytes_per_token: over all texts, if some are token files with measured bytes; None: `byte_counts` has them, or
            they are unknown.
    """

    def __init__(self, names: Sequence[str], texts: Sequence[Any], split: str) -> None:
        self.names, self.texts, self.split = tuple(names), tuple(texts), split
        self.separated: bool = texts[-1].separated

    def __len__(self) -> int:
        return sum(len(text) for text in self.texts)

    @cached_property
    def tokens(self) -> Concatenated:
        """See the class."""
        return Concatenated([text.tokens for text in self.texts])

    @cached_property
    def ends(self) -> np.ndarray:
        """The end of each text in tokens, int64 [texts]."""
        return np.cumsum([len(text) for text in self.texts], dtype=np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each document begins, and the end of the last, int64 [documents + 1]."""
        firsts = (self.ends - [len(text) for text in self.texts]).tolist()
        return np.concatenate(
            [*(text.starts[:-1] + at for text, at in zip(self.texts, firsts, strict=True)), [len(self)]]
        )

    @cached_property
    def byte_counts(self) -> Concatenated | None:
        """The bytes of each token, [N]; None if a text's are unknown."""
        known = [text.byte_counts for text in self.texts]
        return None if any(counts is None for counts in known) else Concatenated(known)

    @property
    def bytes_per_token(self) -> float | None:
        """See the class."""
        if self.byte_counts is not None:
            return None
        each = [text.bytes_per_token if text.byte_counts is None
                else float(text.byte_counts[:].sum(dtype=np.int64)) / len(text) for text in self.texts]  # fmt: skip
        if any(one is None for one in each):
            return None
        return sum(one * len(text) for one, text in zip(each, self.texts, strict=True)) / len(self)

    def text_of(self, documents: np.ndarray) -> np.ndarray:
        """Returns the number of each document's text, int64 [...]; -1 for document -1."""
        result = np.searchsorted(np.cumsum([len(text.starts) - 1 for text in self.texts]), documents, "right")
        return np.where(documents < 0, -1, result)


Stream = TokenStream | ShardStream | MixedStream


def open_stream(corpus: Opened, tokenizer: Tokenizer | None, split: str) -> Stream:
    """Returns `train` or `validation` as tokens; text is encoded first if its tokens are not in the cache.

    Args:
        corpus: text, token files, or a mixture.
        tokenizer: None only for token files.
        split: which.

    Raises:
        UserError: a document cannot be encoded, the split has no tokens, or an id is not in the vocabulary.
    """
    if isinstance(corpus, MixedCorpus):
        texts = [open_stream(one, tokenizer, split) for one in corpus.texts]
        return MixedStream(corpus.names, texts, split)
    if isinstance(corpus, TokenCorpus):
        return corpus.stream(tokenizer, split)
    assert tokenizer is not None, "text needs a tokenizer"
    key = digest([FORMAT, corpus.key, tokenizer.describe()])
    folder = cache.private_folder(corpus.cache_dir, "tokens") / f"{key[:20]}-{split}"
    cache.entry(folder, lambda work: _encode(work, corpus, tokenizer, split))
    stream = TokenStream(folder, split)
    if not len(stream):
        raise UserError(f"the {split} split has no tokens with this tokenizer")
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
