"""Each split as one memory-mapped array of tokens, made once in the cache: documents joined by the separator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UserError
from data import cache, seeding
from data.corpora import FORMAT, Corpus, digest
from data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Stream:
    """The tokens of one split.

    Attributes:
        tokens: [N], the smallest unsigned type that holds the vocabulary, memory-mapped.
        starts: int64 [documents + 1], where each document begins; the last entry is N. A document's tokens include
            the separator behind it, except the last document's, which has none.
    """

    tokens: np.ndarray
    starts: np.ndarray
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __reduce__(self) -> Any:
        # A worker process maps the file again instead of receiving a copy.
        if self.folder is None:
            return Stream, (np.asarray(self.tokens), self.starts)
        return _open, (self.folder,)


def _open(folder: Path) -> Stream:
    return Stream(np.load(folder / "tokens.npy", mmap_mode="r"), np.load(folder / "starts.npy"), folder)


def open_stream(corpus: Corpus, tokenizer: Tokenizer, split: str) -> Stream:
    """Returns a split's tokens, encoded first where the cache does not hold them.

    Validation documents lie in a fixed random order, so that the first so many tokens of them are a fair sample.

    Raises:
        UserError: the split has fewer than two tokens.
    """
    key = digest([FORMAT, corpus.key, tokenizer.describe(), split])
    folder = cache.private_folder(corpus.cache_dir, "tokens") / key[:24]
    cache.entry(folder, lambda work: _encode(work, corpus, tokenizer, split))
    stream = _open(folder)
    if len(stream) < 2:
        raise UserError(f"the {split} split holds {len(stream)} token: two at least are needed to predict one")
    return stream


def _encode(folder: Path, corpus: Corpus, tokenizer: Tokenizer, split: str) -> None:
    texts = corpus.split(split)
    order = np.arange(len(texts))
    if split == "validation":
        order = np.random.Generator(np.random.Philox(seeding.philox_key(0, seeding.ORDER))).permutation(order)
    kind = np.min_scalar_type(tokenizer.vocab_size - 1)
    separator = np.array([tokenizer.separator], kind)
    parts: list[np.ndarray] = []
    lengths = []
    for at, index in enumerate(order):
        ids = tokenizer.encode(texts[int(index)]).astype(kind)
        last = at == len(order) - 1
        parts += [ids] if last else [ids, separator]
        lengths.append(len(ids) + (not last))
    np.save(folder / "tokens.npy", np.concatenate(parts) if parts else np.zeros(0, kind))
    np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
