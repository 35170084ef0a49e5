"""Corpora of token files: memory-mapped, concatenated, and never read whole.

They are identified by a hash of each file's name, size and up to `SAMPLED` evenly spaced blocks, including the first
and the last; a file of one MiB or less is hashed whole.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from configs.errors import UserError
from data import cache, formats
from data.tokenizers import Tokenizer

FORMAT = 1
SAMPLED, BLOCK = 64, 2**14  # blocks of a file that are hashed, and bytes per block
CHECKED, SPAN = 64, 2**13  # spans of a split whose ids are checked before training, and tokens per span
DECODED, PIECE = 32, 2**11  # spans of a split by which bytes per token are measured, and tokens per span
SCAN = 2**22  # tokens searched for separators at once


@dataclass(frozen=True)
class Shard:
    """The tokens of one file. `name` is its path relative to the corpus."""

    name: str
    path: str
    size: int  # bytes
    layout: formats.Layout
    title: str  # of its format


class Joined:
    """Tokens start .. stop - 1 of concatenated files, as an array [N] that is read when it is indexed.

    Raises:
        UserError: an id that is read is not below `vocab_size`; with file and position.
    """

    def __init__(self, shards: Sequence[Shard], start: int, stop: int, vocab_size: int) -> None:
        self._shards, self._start, self._stop, self._vocab_size = shards, start, stop, vocab_size
        self._ends = np.cumsum([shard.layout.count for shard in shards])
        self.dtype = np.result_type(*(shard.layout.dtype for shard in shards))
        self._open: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, key: Any) -> np.ndarray:
        """Returns the tokens of a slice, or at indices of any shape."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._span(start, stop) if step == 1 else self._gather(np.arange(start, stop, step))
        return self._gather(np.asarray(key))

    def _file(self, number: int) -> np.ndarray:
        if number not in self._open:
            shard = self._shards[number]
            layout = shard.layout
            try:
                self._open[number] = np.memmap(shard.path, layout.dtype, "r", layout.offset, (layout.count,))
            except (OSError, ValueError) as error:
                raise UserError(f"{shard.path}: can no longer be read ({error})") from error
        return self._open[number]

    def _span(self, start: int, stop: int) -> np.ndarray:
        result, at, end = [], start + self._start, stop + self._start
        while at < end:
            number = int(np.searchsorted(self._ends, at, "right"))
            last = min(end, int(self._ends[number]))
            first = int(self._ends[number]) - self._shards[number].layout.count
            result.append(self._checked(number, np.asarray(self._file(number)[at - first : last - first]), at - first))
            at = last
        return np.concatenate(result) if len(result) != 1 else result[0]

    def _gather(self, places: np.ndarray) -> np.ndarray:
        places = np.where(places < 0, places + len(self), places) + self._start
        numbers = np.searchsorted(self._ends, places, "right")
        result = np.empty(places.shape, self.dtype)
        for number in np.unique(numbers):
            here = numbers == number
            first = int(self._ends[number]) - self._shards[number].layout.count
            within = places[here] - first
            result[here] = self._checked(int(number), np.asarray(self._file(int(number))[within]), within)
        return result

    def _checked(self, number: int, result: np.ndarray, within: np.ndarray | int) -> np.ndarray:
        """Returns ids; `within` is their position in the file (of the first, or of each)."""
        if result.size and (result.max() >= self._vocab_size or result.min() < 0):
            place = int(np.flatnonzero((result >= self._vocab_size) | (result < 0))[0])
            where = within + place if isinstance(within, int) else int(within[place])
            raise UserError(
                f"{self._shards[number].path}: token {where:,} is {int(result[place])}, and ids must be below the "
                f"vocabulary's {self._vocab_size:,} (data.vocab_size, the tokenizer's, or model.vocab_size)"
            )
        return result

    def spread(self, pieces: int, size: int) -> list[np.ndarray]:
        """Returns up to `pieces` spans of `size` tokens, evenly spaced; all tokens if there are no more."""
        if len(self) <= pieces * size:
            return [self[:]]
        starts = np.arange(pieces) * (len(self) - size) // (pieces - 1)
        return [self[int(start) : int(start) + size] for start in starts]


class ShardStream:
    """One split of token files, with the attributes of `data.streams.TokenStream`.

    Attributes:
        tokens: `Joined` [N], memory-mapped.
        starts: int64 [documents + 1], where documents begin: after each separator; [0, N] without separators.
        byte_counts: None: the bytes of single tokens are unknown.
        bytes_per_token: measured by decoding a sample of the split; None without a tokenizer.
        sampled: tokens of that sample.
        separated: whether the split ends with a separator.
    """

    byte_counts = None

    def __init__(self, corpus: "TokenCorpus", tokenizer: Tokenizer | None, split: str) -> None:
        self._corpus, self._tokenizer, self.split = corpus, tokenizer, split
        self.tokens = Joined(*corpus.splits[split], corpus.limit(tokenizer))
        self.separator = corpus.separator if corpus.separator is not None else tokenizer and tokenizer.separator
        self.separated = self.separator is not None and int(self.tokens[-1]) == self.separator

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardStream, (self._corpus, self._tokenizer, self.split)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def starts(self) -> np.ndarray:
        """See the class; found by one scan of the split, and cached."""
        if self.separator is None:
            return np.array([0, len(self)], np.int64)
        key = f"{self._corpus.key[:20]}-{self.split}-starts-{self.separator}"
        folder = cache.entry(cache.private_folder(self._corpus.cache_dir, "tokens") / key, self._scan)
        return np.load(folder / "starts.npy")

    def _scan(self, folder: Path) -> None:
        results = [np.zeros(1, np.int64)]
        for first in range(0, len(self), SCAN):
            results.append(np.flatnonzero(self.tokens[first : first + SCAN] == self.separator) + first + 1)
        starts = np.concatenate(results)
        np.save(folder / "starts.npy", starts if starts[-1] == len(self) else np.append(starts, len(self)))

    @cached_property
    def _sample(self) -> tuple[int, int]:
        """Tokens of a sample, and the UTF-8 bytes of their text."""
        assert self._tokenizer is not None
        tokens = size = 0
        for piece in self.tokens.spread(DECODED, PIECE):
            tokens += len(piece)
            size += len(self._tokenizer.decode(piece[piece != self.separator]).encode())
        return tokens, size

    @property
    def bytes_per_token(self) -> float | None:
        """See the class."""
        return None if self._tokenizer is None else self._sample[1] / self._sample[0]

    @property
    def sampled(self) -> int:
        """See the class."""
        return 0 if self._tokenizer is None else self._sample[0]


@dataclass(frozen=True)
class TokenCorpus:
    """Token files in two splits; `key` and `fingerprint` as in `data.corpora.Corpus`.

    Attributes:
        splits: by name, (files, first token, end).
        vocab_size: of the ids, as declared; None: the tokenizer's, else the model's.
        model_vocab_size: None if not known yet.
        separator: the id between documents, as declared; None: the tokenizer's.
    """

    key: str
    fingerprint: dict[str, Any]
    cache_dir: str
    splits: dict[str, tuple[tuple[Shard, ...], int, int]]
    holds_text: ClassVar[bool] = False
    vocab_size: int | None = None
    model_vocab_size: int | None = None
    separator: int | None = None

    def limit(self, tokenizer: Tokenizer | None) -> int:
        """Returns the exclusive upper bound of ids."""
        named = None if tokenizer is None else tokenizer.vocab_size
        return self.vocab_size or named or self.model_vocab_size or 2**31

    def stream(self, tokenizer: Tokenizer | None, split: str) -> ShardStream:
        """Returns a split, after checking some of its ids.

        Raises:
            UserError: an id is not in the vocabulary.
        """
        result = ShardStream(self, tokenizer, split)
        result.tokens.spread(CHECKED, SPAN)
        return result


def open_tokens(
    train: Sequence[tuple[str, Path]],
    validation: Sequence[tuple[str, Path]],
    *,
    train_share: float,
    cache_dir: str,
    vocab_size: int | None = None,
    model_vocab_size: int | None = None,
    separator: int | None = None,
) -> TokenCorpus:
    """Opens token files.

    Args:
        train: (name, path) of each.
        validation: the same; empty: the last `1 - train_share` of the tokens of `train` validate.
        train_share: see above.
        cache_dir: see `data.cache`.
        vocab_size: see `TokenCorpus`, as `model_vocab_size` and `separator`.

    Raises:
        UserError: a file is damaged, or a split would be empty.
    """
    of_train, of_validation = _shards(train, "data.path"), _shards(validation, "data.validation_path")
    total = sum(shard.layout.count for shard in of_train)
    if validation:
        held = sum(shard.layout.count for shard in of_validation)
        splits = {"train": (of_train, 0, total), "validation": (of_validation, 0, held)}
        split: dict[str, Any] = {"kind": "validation_path"}
    else:
        cut = int(train_share * total)
        splits = {"train": (of_train, 0, cut), "validation": (of_train, cut, total)}
        split = {"kind": "first", "train_share": train_share}
    for name, (_, start, stop) in splits.items():
        if stop - start < 2:
            raise UserError(f"data.path: the {name} split of the token files has {stop - start} tokens")
    about = {name: [[one.name, one.size, sampled_hash(one)] for one in of] for name, (of, *_) in splits.items()}
    _refuse_shared(about if validation else {})
    content = hashlib.sha256(repr([FORMAT, sorted(about.items()), split, separator]).encode()).hexdigest()
    files = [*of_train, *of_validation]
    fingerprint = {
        "source": "tokens",
        "files": len(files),
        "bytes": sum(shard.size for shard in files),
        "sha256": "",  # token files are never read whole
        "documents_sha256": content,
        "sampled_bytes": sum(min(shard.size, SAMPLED * BLOCK) for shard in files),
        "formats": sorted({f"{shard.title} {shard.layout.dtype}" for shard in files}),
        "tokens": {name: stop - start for name, (_, start, stop) in splits.items()},
        "separator": separator,
        "split": split,
    }
    return TokenCorpus(content, fingerprint, cache_dir, splits, vocab_size, model_vocab_size, separator)


def _shards(files: Sequence[tuple[str, Path]], field: str) -> tuple[Shard, ...]:
    results = []
    for name, path in files:
        start = formats.head(path)
        form = formats.of_tokens(path, start)
        if form is None:
            raise UserError(f"{field}: matches token files and {path}, which is not one; use one kind of file")
        size = path.stat().st_size
        results.append(Shard(name, str(path), size, form.layout(path, size, start), form.title))
    return tuple(shard for shard in results if shard.layout.count)


def _refuse_shared(about: dict[str, list[list[Any]]]) -> None:
    content = {name: {(size, digest): file for file, size, digest in files} for name, files in about.items()}
    for one in content.get("train", {}).keys() & content.get("validation", {}).keys():
        raise UserError(
            f"data.validation_path: {content['validation'][one]} has the same content as "
            f"{content['train'][one]} of data.path, which trains"
        )


def sampled_hash(shard: Shard) -> str:
    """Returns the sha256 of evenly spaced blocks of a file, including the first and the last, in hex."""
    total = hashlib.sha256()
    with Path(shard.path).open("rb") as file:
        if shard.size <= SAMPLED * BLOCK:
            return hashlib.sha256(file.read()).hexdigest()
        for number in range(SAMPLED):
            file.seek(number * (shard.size - BLOCK) // (SAMPLED - 1))
            total.update(file.read(BLOCK))
    return total.hexdigest()
