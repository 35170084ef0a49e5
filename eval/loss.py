"""Loss on held-out data: over the whole split, by position, and at longer lengths under each RoPE scaling."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from data import pipeline
from eval import recall, scoring, stats
from eval.progress import Silent
from eval.tally import Tally, bits_per_byte, scale_interval
from eval.variants import Variant, at_training_length, rows_at, variants
from training.run import Run, open_data

Batches = Iterable[Mapping[str, np.ndarray]]
# (length, rows a batch, most tokens or 0 for all) -> (batches, how many there are, bytes of text they score or None).
Source = Callable[[int, int, int], tuple[Batches, int, int | None]]
RECALL_ROWS = 512  # at the training length; fewer at longer ones, so that about as many answers are scored


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/loss.json's content.

    `loss` is in nats a token over every token of the validation split at the training length; `bits_per_byte` is the
    same information over the text's bytes, so that tokenizers can be compared. Intervals are 95% block-bootstrap
    intervals over consecutive rows: they tell how far the loss would move on other text of the kind, not on another
    seed. `by_length` scores `settings.tokens` tokens of the split at every length, each in rows of that length.

    A run that reads no text is scored on the answers of fresh key-value rows ("source": "mqar").
    """
    corpus = open_data(run.config)
    source = _recall(run) if corpus is None else _text(run, corpus)
    tally, size = _tallied(run, at_training_length(run.config), source, 0, progress, "loss")
    resamples = run.config.eval.bootstrap
    interval = tally.interval(resamples)
    scale = None if not size or tally.loss is None else bits_per_byte(1.0, tally.tokens, size)
    return {
        "source": "mqar" if corpus is None else "text",
        "loss": tally.loss,
        "loss_interval": interval,
        "bits_per_byte": None if scale is None or tally.loss is None else tally.loss * scale,
        "bits_per_byte_interval": None if scale is None else scale_interval(interval, scale),
        "tokens": round(tally.tokens),
        "bytes": size,
        "by_position": tally.by_position(),
        "by_length": list(_by_length(run, source, progress)),
        "settings": {"block_tokens": stats.BLOCK_TOKENS, "confidence": stats.CONFIDENCE},
    }


def _by_length(run: Run, source: Source, progress: Silent) -> Iterator[dict[str, Any]]:
    known: dict[Any, dict[str, Any]] = {}
    for variant in variants(run.config):
        if variant.model is None:
            yield {**variant.entry, "loss": None, "interval": None, "tokens": 0, "by_position": None}
            continue
        if variant.computed not in known:
            name = f"loss at {variant.length} ({variant.scaling})"
            tally, _ = _tallied(run, variant, source, run.config.eval.tokens, progress, name)
            found: dict[str, Any] = {"loss": tally.loss, "interval": tally.interval(run.config.eval.bootstrap)}
            found |= {"tokens": round(tally.tokens), "by_position": tally.by_position()}
            known[variant.computed] = found
        yield {**variant.entry, **known[variant.computed]}


def _tallied(
    run: Run, variant: Variant, source: Source, most: int, progress: Silent, name: str
) -> tuple[Tally, int | None]:
    """Returns the losses of one variant, and the bytes of text that they stand for."""
    rows = rows_at(variant.length, run.config.data.length, run.config.eval.batch_size)
    batches, count, size = source(variant.length, rows, most)
    tally = Tally(variant.length)
    for batch in progress.track(name, batches, count):
        losses, _ = scoring.score(variant.model, run.params, batch)
        tally.add(losses, batch["weights"], batch.get("positions"))
    return tally, size


def _text(run: Run, corpus: Any) -> Source:
    def source(length: int, rows: int, most: int) -> tuple[Batches, int, int | None]:
        found = pipeline.validation(run.config, run.tokenizer, corpus, length=length, batch_size=rows, max_tokens=most)
        return found, len(found), found.bytes

    return source


def _recall(run: Run) -> Source:
    def source(length: int, rows: int, most: int) -> tuple[Batches, int, int | None]:
        total = max(16, RECALL_ROWS * run.config.data.length // length)
        firsts = range(0, total, rows)
        batches = (recall.rows(run.config, first, min(rows, total - first), length).batch() for first in firsts)
        return batches, len(firsts), None

    return source
