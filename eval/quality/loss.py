"""Loss on held-out data: over the whole split, by position, and at longer lengths under each RoPE scaling."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from configs.rules import tasks
from data import pipeline, retrieval
from data.validation import Validation
from eval.progress import Silent
from eval.quality import intervals, recall, scoring, sliding
from eval.quality.retrieval import make
from eval.quality.tally import Tally, bits_per_byte, scale_interval
from eval.variants import Variant, at_training_length, rows_at, variants
from training.run_directory.run import Run, open_text
from training.step import mesh as meshes

Batches = Iterable[Mapping[str, np.ndarray]]  # tokens, targets, weights; maybe positions, segments, each [B, T]
RECALL_ROWS = 512  # at the training length; fewer at longer ones, so that about as many answers are scored


class Source(Protocol):
    """Held-out data in rows of any length."""

    name: str

    def whole(self) -> tuple[Batches, int, int | None]:
        """Returns (batches at the training length, how many, bytes of text they score or None)."""

    def at(self, length: int) -> tuple[Batches, int]:
        """Returns (batches in rows of `length`, how many): the same tokens at every length, where there are some."""

    def sliding(self, length: int) -> tuple[Batches, int] | None:
        """Returns (overlapping windows of `length` that score the tokens of `at` once, how many batches), or None."""

    def reason(self, length: int) -> str | None:
        """Returns why there are no rows of `length`, or None."""


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/loss.json's content.

    `loss` is in nats a token over every token of the validation split at the training length; `bits_per_byte` is the
    same information over the text's bytes, so that tokenizers can be compared. Intervals are 95% block-bootstrap
    intervals over consecutive rows: they tell how far the loss would move on other text of the kind, not on another
    seed. `by_length` scores the same tokens (about `settings.tokens` of them) at every length, in rows of that length
    laid end to end; where `settings.sliding` asks for it also in windows that overlap (see
    eval/quality/sliding.py), under "sliding".

    A run that does not train on text is scored on the answers of held-out rows of its main task ("source": "mqar", or
    the name of another).
    """
    source, devices = source_of(run), 1 if run.mesh is None else run.mesh.size
    batches, count, size = source.whole()
    tally = _tallied(run, at_training_length(run.config), progress.track("loss", batches, count))
    interval = tally.interval(run.config.eval.bootstrap)
    scale = None if not size or tally.loss is None else bits_per_byte(1.0, tally.tokens, size)
    return {
        "source": source.name,
        "loss": tally.loss,
        "loss_interval": interval,
        "bits_per_byte": None if scale is None or tally.loss is None else tally.loss * scale,
        "bits_per_byte_interval": None if scale is None else scale_interval(interval, scale),
        "tokens": round(tally.tokens),
        "bytes": size,
        "by_position": tally.by_position(),
        "by_length": list(_by_length(run, source, progress)),
        "settings": {"block_tokens": intervals.BLOCK_TOKENS, "confidence": intervals.CONFIDENCE, "devices": devices},
    }


def source_of(run: Run) -> Source:
    """Returns the held-out data of what a run trains on."""
    if tasks.uses(run.config, "text"):
        return Text(run, open_text(run))
    name = tasks.main_task(run.config)
    return Recall(run) if name is None or name == "mqar" else Task(run, name)


def _by_length(run: Run, source: Source, progress: Silent) -> Iterator[dict[str, Any]]:
    known: dict[Any, dict[str, Any]] = {}
    for variant in variants(run.config):
        reason = variant.reason or source.reason(variant.length)
        if variant.model is None or reason:
            nothing = {"loss": None, "interval": None, "tokens": 0, "by_position": None}
            yield {**variant.entry, "reason": reason, **nothing}
            continue
        key = scoring.function_key(variant.model, variant.length)
        if key not in known:
            known[key] = _at_length(run, source, variant, progress)
        yield {**variant.entry, **known[key]}


def _at_length(run: Run, source: Source, variant: Variant, progress: Silent) -> dict[str, Any]:
    name, resamples = f"loss at {variant.length} ({variant.scaling})", run.config.eval.bootstrap
    tally = _tallied(run, variant, progress.track(name, *source.at(variant.length)))
    found = {**_figures(tally, resamples), "by_position": tally.by_position()}
    windows = source.sliding(variant.length)
    if windows is not None:
        moved = {"stride": sliding.stride(variant.length, run.config.eval.sliding)}
        tally = _tallied(run, variant, progress.track(f"{name}, sliding", *windows))
        found["sliding"] = {**moved, **_figures(tally, resamples)}
    return found


def _figures(tally: Tally, resamples: int) -> dict[str, Any]:
    return {"loss": tally.loss, "interval": tally.interval(resamples), "tokens": round(tally.tokens)}


def _tallied(run: Run, variant: Variant, batches: Batches) -> Tally:
    tally, rules = Tally(variant.length), meshes.rules_of(run.config, run.mesh)
    for batch in batches:
        losses, _ = scoring.score(variant.model, run.params, batch, rules)
        tally.add(losses, batch["weights"], batch.get("positions"))
    return tally


class Text:
    """The validation split.

    For the lengths, rows of the longest one are taken from all over the split and cut into shorter ones: whatever the
    length, the same tokens are scored, only with less or more before them. For sliding windows they are the second
    halves of rows twice as long, so that each token has a whole window before it.
    """

    name = "text"

    def __init__(self, run: Run, corpus: Any) -> None:
        self.run, self.corpus = run, corpus
        self.available = self._open(run.config.data.length, 0).tokens
        # Documents that are packed apart have no more before them than they have.
        self.slides = run.config.eval.sliding > 0 and run.config.data.packing == "contiguous"
        self.needed = 2 if self.slides else 1  # lengths of a row, over the tokens it scores
        lengths = [variant.length for variant in variants(run.config)]
        fit = [length for length in lengths if self.needed * length <= self.available]
        self.longest = max(fit, default=run.config.data.length)

    def _open(self, length: int, most: int) -> Validation:
        config = self.run.config
        rows = rows_at(length, config.data.length, config.eval.batch_size)
        return pipeline.validation(
            config, self.run.tokenizer, self.corpus, length=length, batch_size=rows, max_tokens=most
        )

    def whole(self) -> tuple[Batches, int, int | None]:
        """See `Source`."""
        found = self._open(self.run.config.data.length, 0)
        return found, len(found), found.bytes

    def at(self, length: int) -> tuple[Batches, int]:
        """See `Source`."""
        found = self._rows()
        halves = ({name: x[:, -self.longest :] for name, x in batch.items()} for batch in found)
        return (cut(batch, length) for batch in halves), len(found)

    def _rows(self) -> Validation:
        return self._open(self.needed * self.longest, self.needed * self.run.config.eval.tokens)

    def sliding(self, length: int) -> tuple[Batches, int] | None:
        """See `Source`."""
        if not self.slides:
            return None
        found, config = self._rows(), self.run.config
        size, share = rows_at(length, config.data.length, config.eval.batch_size), config.eval.sliding
        number = sliding.count(self.longest, length, share, found.batch_size, len(found), size)
        return sliding.windows(found, length, share, size), number

    def reason(self, length: int) -> str | None:
        """See `Source`."""
        if length <= self.longest:
            return None
        twice = ", and sliding windows need twice the length" if self.slides else ""
        return f"the validation split has {self.available} tokens{twice}"


def cut(batch: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Returns a batch [B, T] in rows of `length`, [B * ceil(T / length), length], the last of each old row padded.

    A document that is cut begins anew at position 0.
    """
    rows, old = batch["tokens"].shape
    pieces = -(-old // length)
    padding = ((0, 0), (0, pieces * length - old))
    found = {name: np.pad(x, padding).reshape(rows * pieces, length) for name, x in batch.items()}
    if "segments" in found and "positions" in found:
        begun = (found["segments"] == found["segments"][:, :1]) & (found["segments"] > 0)
        found["positions"] = found["positions"] - np.where(begun, found["positions"][:, :1], 0)
    return found


class Recall:
    """Fresh rows of key-value recall; only answers are scored."""

    name = "mqar"

    def __init__(self, run: Run) -> None:
        self.config = run.config

    def whole(self) -> tuple[Batches, int, int | None]:
        """See `Source`."""
        return *self.at(self.config.data.length), None

    def at(self, length: int) -> tuple[Batches, int]:
        """See `Source`; answers to the last question for each pair."""
        rows = rows_at(length, self.config.data.length, self.config.eval.batch_size)
        number = -(-max(64, RECALL_ROWS * self.config.data.length // length) // rows)
        batches = (recall.rows(self.config, index * rows, rows, length).batch() for index in range(number))
        return batches, number

    def sliding(self, length: int) -> None:
        """See `Source`: a row has nothing before it."""

    def reason(self, length: int) -> str | None:
        """See `Source`."""
        return recall.reason(self.config, length)


class Task:
    """Held-out rows of a task of data/retrieval, needles drawn as in training; only answers are scored."""

    def __init__(self, run: Run, name: str) -> None:
        self.config, self.name = run.config, name
        self._task = make(run, name)

    def whole(self) -> tuple[Batches, int, int | None]:
        """See `Source`."""
        return *self.at(self.config.data.length), None

    def at(self, length: int) -> tuple[Batches, int]:
        """See `Source`."""
        rows = rows_at(length, self.config.data.length, self.config.eval.batch_size)
        number = -(-max(64, RECALL_ROWS * self.config.data.length // length) // rows)
        setting = {"length": length, "batch_size": rows, "rows": rows * number}
        return retrieval.evaluation(self._task, self.config.seed, **setting), number

    def sliding(self, length: int) -> None:
        """See `Source`: a row has nothing before it."""

    def reason(self, length: int) -> str | None:
        """See `Source`."""
        short = self._task.shortest() - 1
        return f"needle and question take {short} tokens" if length < short else None
