"""The validation split in batches: each token once, or in rows of exactly one length."""

from collections.abc import Iterator

import numpy as np

from configs.errors import UserError
from data.packing import Batch, Packed, empty
from data.parts import Part
from data.streams import Stream


class Validation:
    """Rows of `length` tokens over the whole split, iterable any number of times.

    With contiguous packing the documents, joined by the separator, are one text; every token after the first is a
    target once, in rows without overlap. With segments every token after the first of each document is. A last short
    row and the last batch are padded with weight 0 (and segment 0). A split shorter than a row is one short row.

    `max_tokens` above 0 takes only as many rows as have that many tokens, evenly spaced over the split, so that they do
    not all come from the first documents.

    Attributes:
        length: T.
        batch_size: B.
        rows: number of rows with tokens.
        tokens: number of scored tokens.
        bytes: the UTF-8 bytes of text of the scored tokens: a loss of x nats per token is x * tokens / bytes / ln 2
            bits per byte with any tokenizer. Separators have none. For token files it is `tokens` times the bytes per
            token of a decoded sample, rounded, and None without a tokenizer.

    Raises:
        UserError: the split has nothing to predict.
    """

    def __init__(
        self, stream: Stream | Part, packing: str, *, length: int, batch_size: int, max_tokens: int = 0
    ) -> None:
        self.length, self.batch_size = length, batch_size
        self._stream = stream
        # The last separator separates nothing.
        self._end = _end(stream) if packing == "contiguous" else len(stream)
        self._packed = Packed(stream, length) if packing == "segments" else None
        if self._packed is None and self._end < 2:
            raise UserError("the validation split has fewer than two tokens; nothing to predict")
        total = len(self._packed) if self._packed is not None else -(-(self._end - 1) // length)
        kept = total if not max_tokens else min(total, -(-max_tokens // length))
        self._chosen = np.arange(kept) * total // kept
        self.rows = kept
        if self._packed is None and kept == total:  # every token after the first
            self.tokens = self._end - 1
            self.bytes = self._bytes(slice(1, self._end))
            return
        places = [self._targets(int(row)) for row in self._chosen]
        self.tokens = sum(len(of_row) for of_row in places)
        self.bytes = self._bytes(*places)

    def _bytes(self, *places: slice | np.ndarray) -> int | None:
        counts, per_token = self._stream.byte_counts, self._stream.bytes_per_token
        if counts is not None:
            return sum(int(counts[one].sum(dtype=np.int64)) for one in places)
        return None if per_token is None else round(per_token * self.tokens)

    def _targets(self, row: int) -> np.ndarray:
        """The indices in the stream of the tokens that a row scores."""
        if self._packed is not None:
            return self._packed.targets(row)
        start = row * self.length
        return np.arange(start + 1, min(start + self.length, self._end - 1) + 1)

    def bytes_between(self, start: int, stop: int) -> int | None:
        """Returns the bytes of the scored tokens in start .. stop - 1 of the split; None: they were not counted."""
        counts = self._stream.byte_counts
        if counts is None:
            return None
        total = 0
        for row in self._chosen:
            places = self._targets(int(row))
            low, high = np.searchsorted(places, [start, stop])
            if low < high:
                total += int(counts[places[low:high]].sum(dtype=np.int64))
        return total

    def documents(self) -> Iterator[np.ndarray]:
        """Yields for each batch the document of each scored token, int64 [B, T]; -1 where nothing is scored."""
        for first in range(0, self.rows, self.batch_size):
            found_BT = np.full((self.batch_size, self.length), -1, np.int64)
            for at, row in enumerate(self._chosen[first : first + self.batch_size]):
                places = self._targets(int(row))
                found_BT[at, : len(places)] = np.searchsorted(self._stream.starts, places, "right") - 1
            yield found_BT

    def __len__(self) -> int:
        """Number of batches."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, self.rows, self.batch_size):
            yield self._batch(self._chosen[first : first + self.batch_size])

    def _batch(self, rows: np.ndarray) -> Batch:
        batch = empty(self.batch_size, self.length, segments=self._packed is not None)
        if self._packed is not None:
            for name, values in self._packed.rows(rows).items():
                batch[name][: len(rows)] = values
            return batch
        for at, row in enumerate(rows):
            targets = self._targets(int(row))
            batch["tokens"][at, : len(targets)] = self._stream.tokens[targets - 1]
            batch["targets"][at, : len(targets)] = self._stream.tokens[targets]
            batch["weights"][at, : len(targets)] = 1
        return batch


def _end(stream: Stream | Part) -> int:
    """Returns the number of tokens of documents joined by the separator, without the last separator."""
    return len(stream) - (1 if stream.separated else 0)


class ExactRows:
    """Rows of exactly `length` tokens over the split, its documents joined by the separator; no short rows.

    Rows lie end to end in stretches; the remainder of a stretch after its last row is dropped. With `max_tokens` 0, or
    at least the available ones, the only stretch is the whole split. Otherwise stretches are evenly spaced over it.
    Their size does not depend on the length, provided that it fits a row: up to 16 training lengths, less if that would
    leave fewer than 8 stretches. So lengths that divide a stretch score the same tokens, and the tokens scored at one
    length do not depend on the other lengths.

    Args:
        stream: the split.
        length: T.
        batch_size: B.
        training_length: tokens.
        max_tokens: scored tokens, approximately; 0: all.
        skip: tokens at the beginning of the split that are not scored.
        before: tokens before each row that a batch also has, with weight 0; at most `skip`.

    Attributes:
        rows: number of rows.
        tokens: number of scored tokens.
        dropped: targets of the stretches that are in no whole row.
        available: targets behind `skip`.
    """

    def __init__(
        self,
        stream: Stream | Part,
        *,
        length: int,
        batch_size: int,
        training_length: int,
        max_tokens: int = 0,
        skip: int = 0,
        before: int = 0,
    ) -> None:
        if before > skip:
            raise ValueError(f"before = {before}: must be at most skip = {skip}")
        self.length, self.batch_size, self._before, self._stream = length, batch_size, before, stream
        self.available = max(0, _end(stream) - 1 - skip)
        size, starts = _stretches(self.available, length, training_length, max_tokens)
        each = size // length
        self._starts = (skip + starts[:, None] + length * np.arange(each)).ravel()
        self.rows = len(self._starts)
        self.tokens = self.rows * length
        self.dropped = len(starts) * size - self.tokens

    def __len__(self) -> int:
        """Number of batches."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, self.rows, self.batch_size):
            batch = empty(self.batch_size, self._before + self.length, segments=False)
            for at, start in enumerate(self._starts[first : first + self.batch_size]):
                text = np.asarray(self._stream.tokens[start - self._before : start + self.length + 1])
                batch["tokens"][at], batch["targets"][at] = text[:-1], text[1:]
                batch["weights"][at, self._before :] = 1
            yield batch


def _stretches(available: int, length: int, training_length: int, max_tokens: int) -> tuple[int, np.ndarray]:
    """Returns (tokens per stretch, where each begins among `available` targets, int64 [n])."""
    if not max_tokens or max_tokens >= available:
        return available, np.zeros(1, np.int64)
    size = training_length * min(16, max(1, max_tokens // 8 // training_length))
    size = min(max(size, length), available)
    total = available // size
    kept = min(total, -(-max_tokens // size))
    return size, np.arange(kept) * total // kept * size
