"""Training batches: sources mixed by weight, curriculum stages, prefetching through Grain, and exact state.

Batch n is a function of (config, seed, n) alone. Workers therefore affect only speed, and the state of a stream is the
number of batches taken.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules import tasks
from configs.rules.sources import mixture_names
from data import mqar, parts, retrieval
from data.corpora import Opened
from data.packing import Batch, Contiguous, RowSource, Segments
from data.streams import MixedStream, Stream, open_stream
from data.tokenizers import Tokenizer
from data.validation import Validation
from data.workers import Watched, end_with_parent

__all__ = ["WHOLE", "Batch", "Share", "Stage", "TrainStream", "Validation", "stages", "validation"]


@dataclass(frozen=True)
class Stage:
    """One setting of the data for `steps` batches; None: until the end."""

    steps: int | None
    length: int  # T
    batch_size: int  # B
    pairs: int  # maximum key-value pairs per row, for mqar and mqar_gaps
    needles: int  # maximum needles, hops or tokens per row, for the other tasks
    weights: dict[str, float]  # by source, at least one above 0


def stages(config: ConfigDict) -> list[Stage]:
    """Returns the stages of `data.curriculum`, completed by the main setting's values; then the main setting."""
    data = config.data
    results = []
    for given in (*data.curriculum, {"steps": None}):
        results.append(
            Stage(
                steps=given["steps"],
                length=given.get("length", data.length),
                batch_size=given.get("batch_size", data.batch_size),
                pairs=given.get("pairs", data.mqar.pairs),
                needles=given.get("needles", data.retrieval.needles),
                weights={**data.weights.to_dict(), **dict(given.get("weights", {}))},
            )
        )
    return results


@dataclass(frozen=True)
class Share:
    """The rows of every batch that this process needs: some of `of` equal parts, in order."""

    parts: tuple[int, ...] = (0,)
    of: int = 1

    def spans(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yields (first, after the last) of the rows of a batch of `rows`."""
        size = rows // self.of
        for part in self.parts:
            if part - 1 not in self.parts:  # adjacent parts are made together
                last = next(other for other in itertools.count(part + 1) if other not in self.parts)
                yield part * size, last * size


WHOLE = Share()


class MqarSource:
    """Fresh key-value rows of one stage."""

    def __init__(self, config: ConfigDict, stage: Stage, number: int, segments: bool) -> None:
        self._seed, self._stage = config.seed, number
        vocab_size = config.data.mqar.vocab_size
        self._setting = {"length": stage.length, "pairs": stage.pairs, "vocab_size": vocab_size, "segments": segments}

    def rows(self, first: int, count: int) -> Batch:
        """Returns consecutive rows."""
        return mqar.rows(self._seed, first, count, stage=self._stage, **self._setting)


class Mixture:
    """Rows of several sources, in each batch in proportion to their weights up to whole rows, without drift.

    Of the first n rows, `floor(n * share)` come from the first source, and so on with the remainder, in exact
    arithmetic: the number of rows before any batch is known without generating them. Within a batch the rows of a
    source are adjacent.
    """

    def __init__(self, sources: Mapping[str, RowSource], weights: Mapping[str, float], batch_size: int) -> None:
        self._sources = [sources[name] for name in sources]
        exact = [Fraction(repr(float(weights[name]))) for name in sources]
        # Each source's share of what the previous sources leave.
        self._shares = [weight / sum(exact[i:]) for i, weight in enumerate(exact)]
        self._batch_size = batch_size

    def taken(self, rows: int) -> list[int]:
        """Returns how many of the first `rows` rows come from each source."""
        results = []
        for share in self._shares:
            results.append(int(rows * share))
            rows -= results[-1]
        return results

    def batch(self, number: int, share: Share = WHOLE) -> Batch:
        """Returns one batch, or `share`'s part of it; only those rows are made."""
        if len(self._sources) == 1 and share.of == 1:
            return self._sources[0].rows(number * self._batch_size, self._batch_size)
        before, after = self.taken(number * self._batch_size), self.taken((number + 1) * self._batch_size)
        parts, ends = [], np.cumsum([high - low for low, high in zip(before, after, strict=True)])
        for first, last in share.spans(self._batch_size):
            for source, low, high, end in zip(self._sources, before, after, ends, strict=True):
                start = int(end) - (high - low)  # index of the source's first row in the batch
                begin, stop = max(first, start), min(last, int(end))
                if stop > begin:
                    parts.append(source.rows(low + begin - start, stop - begin))
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def mixed(name: str) -> str:
    """Returns the name of the row source for a text of `data.mixture`."""
    return f"text/{name}"


def source_weights(config: ConfigDict, stage: Stage) -> dict[str, float]:
    """Returns the weight of each row source in a stage; a mixture's texts share the weight of `text`."""
    mixture = config.data.mixture
    total = sum(one["weight"] for one in mixture)
    names = zip(mixture_names(mixture), mixture, strict=True)
    return {**stage.weights, **{mixed(name): stage.weights["text"] * (one["weight"] / total) for name, one in names}}


def row_sources(
    config: ConfigDict, stage: Stage, number: int, text: Stream | None, tokenizer: Tokenizer | None
) -> dict[str, RowSource]:
    """Returns the sources that stage `number` draws rows from, by name.

    Raises:
        UserError: the text does not fill one row; a task's rows do not fit, or the tokenizer cannot encode them.
    """
    sources: dict[str, RowSource] = {}
    segments = config.data.packing == "segments" and tasks.uses(config, "text")
    if stage.weights["text"] and text is not None:
        pack = Segments if segments else Contiguous
        if not isinstance(text, MixedStream):
            sources["text"] = pack(text, stage.length, config.seed, number)
        several = zip(text.names, text.texts, strict=True) if isinstance(text, MixedStream) else ()
        for index, (name, one) in enumerate(several):
            try:
                sources[mixed(name)] = pack(one, stage.length, config.seed, number, index)
            except UserError as error:
                raise UserError(f"data.mixture[{index}], {name}: {error}") from error
    if stage.weights["mqar"]:
        sources["mqar"] = MqarSource(config, stage, number, segments)
    for name in (task for task in tasks.TASKS if stage.weights[task]):
        settings = config.data.retrieval
        sources[name] = retrieval.TaskSource(
            retrieval.make(name, config, tokenizer, text),
            retrieval.Draw(config.seed, number),
            length=stage.length,
            needles=stage.pairs if name == "mqar_gaps" else stage.needles,
            answer_weight=settings.answer_weight,
            text_weight=settings.text_weight,
            segments=segments,
        )
    return sources


class Batches:
    """All batches of a run by number, across its stages: a random-access source for Grain."""

    def __init__(
        self, config: ConfigDict, text: Stream | None, tokenizer: Tokenizer | None, share: Share = WHOLE
    ) -> None:
        self._mixtures, self._starts, self._share = [], [0], share
        for number, stage in enumerate(stages(config)):
            sources = row_sources(config, stage, number, text, tokenizer)
            self._mixtures.append(Mixture(sources, source_weights(config, stage), stage.batch_size))
            if stage.steps is not None:
                self._starts.append(self._starts[-1] + stage.steps)

    def __len__(self) -> int:
        return sys.maxsize  # infinite

    def stage(self, number: int) -> int:
        """Returns the stage that batch `number` belongs to."""
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def __getitem__(self, number: Any) -> Batch:
        stage = self.stage(int(number))
        return self._mixtures[stage].batch(int(number) - self._starts[stage], self._share)


class TrainStream:
    """The training batches in order, without end.

    A batch is a dict of arrays [B, T]: tokens, targets int32, weights float32, and with packing = segments also
    positions and segments int32. Text in contiguous packing and key-value rows need neither.

    Args:
        config: resolved.
        tokenizer: None if no stage reads or writes words, or token files come without one.
        corpus: None if no stage reads text.
        share: the rows of each batch that this process needs. The state is the same for all processes.

    Raises:
        UserError: see `row_sources`.
    """

    def __init__(
        self,
        config: ConfigDict,
        tokenizer: Tokenizer | None,
        corpus: Opened | None,
        share: Share = WHOLE,
    ) -> None:
        text = None
        if tasks.reads_text(config):
            assert corpus is not None, "text has weight, so a corpus must be given"
            text = open_stream(corpus, tokenizer, "train")
        self._batches = Batches(config, text, tokenizer, share)
        self._workers, self._prefetch = config.data.workers, config.data.prefetch
        self._taken = 0
        self._iterator: Any = None
        self.say: Callable[[str], None] = print  # called with a message when workers died

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = Watched(self._open, lambda text: self.say(text)) if self._workers else self._open()
        batch = next(self._iterator)
        self._taken += 1
        # Arrays from worker processes are in shared memory, which would outlive its manager at the end of the program.
        return {name: np.array(values) for name, values in batch.items()} if self._workers else batch

    def _open(self) -> Any:
        return iter(self._dataset())

    def _dataset(self) -> Any:
        """From the next batch on; threads or processes may run ahead without affecting the state."""
        import grain  # imported here: building and measuring programs does not need it

        ahead = grain.MapDataset.source(self._batches)[self._taken :]
        if self._workers:
            if not flags.FLAGS.is_parsed():
                flags.FLAGS.mark_as_parsed()  # Grain's processes read absl flags, which the commands do not parse
            each = max(1, -(-self._prefetch // self._workers))
            options = grain.MultiprocessingOptions(num_workers=self._workers, per_worker_buffer_size=each)
            rows = ahead.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            return rows.mp_prefetch(options, worker_init_fn=end_with_parent)
        threads = 1 if self._prefetch else 0
        return ahead.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=self._prefetch))

    @property
    def stage(self) -> int:
        """The stage of the batch last returned, or of the first batch before that."""
        return self._batches.stage(max(self._taken - 1, 0))

    def get_state(self) -> dict[str, int]:
        """Returns the state, for JSON: how many batches were returned, not counting prefetched ones."""
        return {"batches": self._taken}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Continues after the last batch returned when `get_state` was called; with any number of workers."""
        self.close()
        self._taken = int(state["batches"])

    def close(self) -> None:
        """Stops prefetching. The stream can be used again and continues at the same batch."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None


def validation(
    config: ConfigDict,
    tokenizer: Tokenizer | None,
    corpus: Opened,
    *,
    length: int,
    batch_size: int,
    max_tokens: int = 0,
    part: str = parts.WHOLE,
) -> Validation:
    """Returns the validation split, or a part of it (`data.parts`), in batches, see `Validation`.

    Raises:
        UserError: the split has nothing to predict.
    """
    stream = parts.open_split(corpus, tokenizer, part)
    return Validation(stream, config.data.packing, length=length, batch_size=batch_size, max_tokens=max_tokens)
