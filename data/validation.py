"""The validation split in batches that score each token once, whatever the batch size."""

from collections.abc import Iterator

import numpy as np

from configs.errors import UserError
from data.packing import Batch, Packed, empty
from data.streams import TokenStream


class Validation:
    """Rows of `length` tokens over the whole split, iterable any number of times.

    With contiguous packing the documents, joined by the separator, are one text whose every token after the first is a
    target once, in rows without overlap; with segments every token after the first of each document is. A last short
    row and the last batch are filled up with weight 0 (and segment 0). A split shorter than a row is one short row.

    `max_tokens` above 0 takes only as many rows as have that many places, spread evenly from the split's beginning to
    its end, so that they do not all come from the first documents.

    Attributes:
        length: T.
        batch_size: B.
        rows: how many rows hold tokens.
        tokens: how many are scored.
        bytes: the UTF-8 bytes of text that the scored tokens stand for, so that a loss of x nats a token is
            x * tokens / bytes / ln 2 bits a byte with any tokenizer. Separators stand for none.

    Raises:
        UserError: the split holds nothing to predict.
    """

    def __init__(self, stream: TokenStream, packing: str, *, length: int, batch_size: int, max_tokens: int = 0) -> None:
        self.length, self.batch_size = length, batch_size
        self._stream = stream
        # The last separator joins nothing.
        self._end = len(stream) - (1 if stream.separated and packing == "contiguous" else 0)
        self._packed = Packed(stream, length) if packing == "segments" else None
        if self._packed is None and self._end < 2:
            raise UserError("the validation split has fewer than two tokens; nothing to predict")
        total = len(self._packed) if self._packed is not None else -(-(self._end - 1) // length)
        kept = total if not max_tokens else min(total, -(-max_tokens // length))
        self._chosen = np.arange(kept) * total // kept
        self.rows = kept
        self.tokens = self.bytes = 0
        for row in self._chosen:
            places = self._targets(int(row))
            self.tokens += len(places)
            self.bytes += int(stream.byte_counts[places].sum(dtype=np.int64))

    def _targets(self, row: int) -> np.ndarray:
        """The places in the stream of the tokens that a row scores."""
        if self._packed is not None:
            return self._packed.targets(row)
        start = row * self.length
        return np.arange(start + 1, min(start + self.length, self._end - 1) + 1)

    def __len__(self) -> int:
        """How many batches."""
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
