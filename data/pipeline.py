"""Batches for training and validation, through Grain.

A training batch is a function of (config, stage, its number in the stage): which rows of which source it holds, and what
is in them. Grain prepares batches ahead, in a thread or in worker processes, and keeps the iterator's state.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from ml_collections import ConfigDict

from data import mqar, packing
from data.corpora import Corpus
from data.streams import Stream, open_stream
from data.tokenizers import Tokenizer

Batch = dict[str, np.ndarray]  # tokens, targets int32 [B, T]; weights float32 [B, T]; maybe positions, segments int32
ENDLESS = 2**40  # batches of the last stage: more than any run takes


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one shape and one mixture.

    Attributes:
        steps: how many batches, or None for the last stage, which goes on to the end of the budget.
        length: tokens a row; batch_size: rows a batch; pairs: most key-value pairs a row of recall.
        weights: {source: share of rows}, adding up to 1.
    """

    steps: int | None
    length: int
    batch_size: int
    pairs: int
    weights: Mapping[str, float]


def stages(config: ConfigDict) -> list[Stage]:
    """Returns the curriculum of a sound config, and the main setting as its last stage."""
    data = config.data
    main = data.weights.to_dict()

    def made(given: Mapping[str, Any], steps: int | None) -> Stage:
        weights = {**main, **given.get("weights", {})}
        total = sum(weights.values())
        shares = {name: weight / total for name, weight in weights.items()}
        batch_size, pairs = given.get("batch_size", data.batch_size), given.get("pairs", data.mqar.pairs)
        return Stage(steps, given["length"], batch_size, pairs, shares)

    return [*(made(stage, stage["steps"]) for stage in data.curriculum), made({"length": data.length}, None)]


class BatchMaker:
    """Makes the batch of any number of one stage; the same in every process."""

    def __init__(self, config: ConfigDict, stage: Stage, index: int, stream: Stream | None) -> None:
        self.stage, self.index, self.seed = stage, index, config.seed
        self.vocab_size = config.data.mqar.vocab_size
        self.segments = config.data.packing == "segments" and stage.weights["text"] > 0
        self.text = None
        if stage.weights["text"] > 0 and stream is not None:
            self.text = packing.packing(config.data.packing, stream, stage.length, config.seed, index)

    def share(self, number: int) -> tuple[int, int, int, int]:
        """Returns (first text row, text rows, first recall row, recall rows) of a batch.

        Rows are dealt out so that after any number of batches each source has its share, to the row.
        """
        rows = self.stage.batch_size
        before, after = (math.floor(n * rows * self.stage.weights["text"] + 1e-9) for n in (number, number + 1))
        return before, after - before, number * rows - before, rows - (after - before)

    def __call__(self, number: int) -> Batch:
        """Returns batch `number` of the stage."""
        first_text, texts, first_recall, recalls = self.share(number)
        parts: list[Batch] = []
        if texts and self.text is not None:
            parts.append(self.text.rows(first_text, texts))
        if recalls:
            stage = self.stage
            found = mqar.training_rows(
                self.seed, self.index, first_recall, recalls, stage.length, stage.pairs, self.vocab_size
            ).batch()
            if self.segments:
                found |= {
                    "positions": np.broadcast_to(np.arange(stage.length, dtype=np.int32), found["tokens"].shape),
                    "segments": np.ones_like(found["tokens"]),
                }
            parts.append(found)
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class TrainStream:
    """The training batches of a config, stage after stage, without end; its state resumes it exactly.

    Attributes:
        stage: the index of the stage that the newest batch belongs to.
    """

    def __init__(self, config: ConfigDict, tokenizer: Tokenizer | None, corpus: Corpus | None) -> None:
        """Takes a resolved config, and its corpus and tokenizer (None where it reads no text).

        Raises:
            UserError: the training split is too short to predict anything.
        """
        self.config = config
        self.stages = stages(config)
        self.stream = None
        if corpus is not None and tokenizer is not None:
            self.stream = open_stream(corpus, tokenizer, "train")
        self.stage, self.taken = 0, 0
        self._iterator = self._iterate(0)

    def _iterate(self, index: int) -> Any:
        stage, data = self.stages[index], self.config.data
        make = BatchMaker(self.config, stage, index, self.stream)
        batches = grain.MapDataset.range(stage.steps or ENDLESS).map(make)
        ahead = grain.ReadOptions(num_threads=1 if data.prefetch else 0, prefetch_buffer_size=max(1, data.prefetch))
        iterated = batches.to_iter_dataset(ahead)
        if data.workers:
            iterated = iterated.mp_prefetch(grain.MultiprocessingOptions(num_workers=data.workers))
        return iter(iterated)

    def __iter__(self) -> "TrainStream":
        return self

    def __next__(self) -> Batch:
        if self.taken == self.stages[self.stage].steps:
            self.stage, self.taken = self.stage + 1, 0
            self._iterator = self._iterate(self.stage)
        self.taken += 1
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """Returns a JSON-able state: the stage, the batches taken of it, and Grain's own iterator state."""
        return {"stage": self.stage, "taken": self.taken, "grain": self._iterator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a state that `get_state` gave."""
        self.stage, self.taken = state["stage"], state["taken"]
        self._iterator = self._iterate(self.stage)
        self._iterator.set_state(state["grain"])


def validation(
    config: ConfigDict,
    tokenizer: Tokenizer,
    corpus: Corpus,
    *,
    length: int,
    batch_size: int,
    max_tokens: int = 0,
) -> Iterator[Batch]:
    """Yields the validation split in rows of `length`; every token that can be predicted is scored exactly once.

    The rows follow one another in the stream (or, packed, in its documents' order), so nothing depends on the batch
    size; the last batch is padded with rows of weight 0. A split shorter than a row gives one padded row.

    Args:
        config: resolved; `data.packing` says how rows are made.
        tokenizer: the run's.
        corpus: the run's.
        length: tokens a row.
        batch_size: rows a batch.
        max_tokens: only the first so many tokens (documents lie in a fixed random order); 0: all.
    """
    stream = open_stream(corpus, tokenizer, "validation")
    if config.data.packing == "segments":
        begin, end = packing.pieces(stream, length)
        if max_tokens:
            kept = np.cumsum(end - begin) <= max_tokens
            kept[0] = True
            begin, end = begin[kept], end[kept]
        packed = packing.plan(begin, end, length)
        total = len(packed.first_piece) - 1
    else:
        tokens = stream.tokens[: max_tokens + 1] if max_tokens else stream.tokens
        total = -(-(len(tokens) - 1) // length)
    for first in range(0, total, batch_size):
        wanted = np.arange(first, min(first + batch_size, total))
        if config.data.packing == "segments":
            rows = packing.fill(stream, packed, wanted, length)
        else:
            rows = packing.cut(tokens, wanted * length, length)
        missing = batch_size - len(wanted)
        yield {name: np.pad(x, ((0, missing), (0, 0))) for name, x in rows.items()}
