"""Loss on held-out data: over the whole split, by position, and at longer lengths with each RoPE scaling."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from configs.rules import tasks
from data import parts, retrieval
from data.parts import WHOLE
from data.streams import MixedStream
from data.validation import ExactRows, Validation
from eval.progress import Quiet
from eval.quality import intervals, scoring, sliding
from eval.quality.retrieval import far, make, no_filler, too_short
from eval.quality.tally import Tally, bits_per_byte, scale_interval
from eval.variants import CONTROL, Variant, at_training_length, beyond, control, reach, rows_at, variants
from training.run_directory.run import Run, open_text
from training.step import mesh as meshes

Batches = Iterable[Mapping[str, np.ndarray]]  # tokens, targets, weights; optionally positions, segments, each [B, T]
RECALL_ROWS = 512  # at the training length; fewer at longer ones, so that about equally many answers are scored


@dataclass(frozen=True)
class Rows:
    """Rows of one length in batches; `dropped` counts the tokens of the text that are in no whole row."""

    batches: Batches
    number: int  # of batches
    dropped: int | None = None  # None: rows are generated, not cut from a text


class Source(Protocol):
    """Held-out data in rows of any length."""

    name: str

    def available(self) -> int | None:
        """Returns the tokens that could be scored at the training length; None: any number of rows can be made."""

    def whole(self) -> tuple[Batches, int, int | None]:
        """Returns (batches at the training length, how many, bytes of text they score or None)."""

    def bytes_note(self) -> dict[str, Any]:
        """Returns the note of eval/loss.json on bytes that were not counted: how they are known, or why not."""

    def documents(self) -> Iterator[np.ndarray] | None:
        """Yields the document of each scored token for each batch of `whole`; None if rows are independent."""

    def apart(self) -> "Apart | None":
        """Returns the accumulator of the losses of `whole` for each text of a mixture; None if there is one text."""

    def at(self, length: int) -> Rows:
        """Returns rows of exactly `length`, independent of other evaluated lengths."""

    def sliding(self, length: int) -> tuple[Batches, int] | None:
        """Returns (overlapping windows of `length` that score the tokens of `at` once, how many batches), or None."""

    def reason(self, length: int) -> str | None:
        """Returns why there are no rows of `length`, or None."""


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/loss.json's content.

    `loss` is in nats per token over every token of the validation split at the training length, or over about
    `settings.loss_tokens` of them, in rows spread evenly over the split; `tokens` is the number scored and
    `settings.split_tokens` the number available. `bits_per_byte` is the same information over the text's bytes, so that
    tokenizers can be compared. Intervals are 95% block-bootstrap intervals over consecutive rows: they show how much
    the loss would change on other text of the same kind, not with another seed. `by_length` scores about
    `settings.tokens` tokens in rows of exactly each length, laid end to end (see `data.validation.ExactRows`; the
    remainder after the last row is not scored, and counted as "dropped"), and with `settings.sliding` also in
    overlapping windows (see eval/quality/sliding.py), under "sliding". Beyond the training length "control" has the
    loss of the same rows with attention windows of the training length: any gain over it comes from farther back.

    `split` is the scored part (`eval.split`), `text` its loss by piece of text (see `Tally.text`), which each entry of
    `by_length` has for its own rows. The bytes of token files are measured on a decoded sample and marked as such
    ("bytes_measured"), or unknown ("bits_per_byte_reason").

    For a mixture of texts (`data.mixture`) `loss` is over all their validation tokens together, and `by_source` has
    each text by name: its share of the training rows, loss, interval, bits per byte, tokens and bytes.

    A run that does not train on text is scored on the answers of held-out rows of its main task ("source": "mqar", or
    the name of another); beyond the training length on answers whose nearest copy is farther back than it.
    """
    source, devices = source_of(run), 1 if run.mesh is None else run.mesh.size
    batches, count, size = source.whole()
    variant = at_training_length(run.config)
    apart = source.apart()
    tally = _tallied(run, variant, progress.track("loss", batches, count), source.documents(), apart)
    interval = tally.interval(run.config.eval.bootstrap)
    scale = None if not size or tally.loss is None else bits_per_byte(1.0, tally.tokens, size)
    return {
        "source": source.name,
        "split": run.config.eval.split if source.name == "text" else WHOLE,
        "loss": tally.loss,
        "loss_interval": interval,
        "bits_per_byte": None if scale is None or tally.loss is None else tally.loss * scale,
        "bits_per_byte_interval": None if scale is None else scale_interval(interval, scale),
        "tokens": round(tally.tokens),
        "bytes": size,
        **source.bytes_note(),
        **({"by_source": apart.entries(run.config.eval.bootstrap)} if apart else {}),
        "text": tally.text(),
        "by_position": tally.by_position(),
        "by_length": list(_by_length(run, source, progress)),
        "settings": {
            "split_tokens": source.available(),
            "block_tokens": intervals.BLOCK_TOKENS,
            "confidence": intervals.CONFIDENCE,
            "devices": devices,
        },
    }


def source_of(run: Run) -> Source:
    """Returns the held-out data of a run's training sources."""
    if tasks.uses(run.config, "text"):
        return Text(run, open_text(run))
    return Task(run, tasks.main_task(run.config) or "mqar")


def _by_length(run: Run, source: Source, progress: Quiet) -> Iterator[dict[str, Any]]:
    known: dict[Any, dict[str, Any]] = {}

    def at(variant: Variant) -> dict[str, Any]:
        assert variant.model is not None, "`reason` refuses this"
        key = scoring.function_key(variant.model, variant.length)
        if key not in known:
            known[key] = _at_length(run, source, variant, progress)
        return known[key]

    for variant in variants(run.config):
        reason = variant.reason or source.reason(variant.length)
        if variant.model is None or reason:
            nothing = {"loss": None, "interval": None, "tokens": 0, "by_position": None}
            yield {**variant.entry, "reason": reason, **nothing}
            continue
        entry = {**variant.entry, **at(variant)}
        if run.config.eval.control and beyond(run.config, variant.length):
            local = control(run.config, variant)
            named = {"name": CONTROL, "window": int(run.config.data.length)}
            if local.model is None:
                entry["control"] = {**named, "reason": local.reason}
            else:
                figures = {name: at(local)[name] for name in ("loss", "interval", "tokens")}
                entry["control"] = {**named, "reach": reach(local.model), **figures}
        yield entry


def _at_length(run: Run, source: Source, variant: Variant, progress: Quiet) -> dict[str, Any]:
    name, resamples = f"loss at {variant.length} ({variant.scaling})", run.config.eval.bootstrap
    rows = source.at(variant.length)
    tally = _tallied(run, variant, progress.track(name, rows.batches, rows.number))
    results = {**_figures(tally, resamples), "dropped": rows.dropped, "by_position": tally.by_position()}
    results["text"] = tally.text()
    if not tally.tokens:
        results["reason"] = "no answer is farther back than the training length"
    windows = None if variant.scaling == CONTROL else source.sliding(variant.length)
    if windows is not None:
        moved = {"stride": sliding.stride(variant.length, run.config.eval.sliding)}
        tally = _tallied(run, variant, progress.track(f"{name}, sliding", *windows))
        results["sliding"] = {**moved, **_figures(tally, resamples)}
    return results


def _figures(tally: Tally, resamples: int) -> dict[str, Any]:
    return {"loss": tally.loss, "interval": tally.interval(resamples), "tokens": round(tally.tokens)}


class Apart:
    """Losses of each text of a mixture, at the training length.

    Args:
        config: of the run.
        stream: the validation split, or a part of it, whose documents determine the text of a token.
        rows: the scored ones.
    """

    def __init__(self, config: ConfigDict, stream: MixedStream, rows: Validation) -> None:
        self._stream, self._rows = stream, rows
        weights = [float(one["weight"]) for one in config.data.mixture]
        self._shares = [weight / sum(weights) for weight in weights]
        self._tallies = [Tally(config.data.length) for _ in stream.names]

    def add(self, losses: np.ndarray, batch: Mapping[str, np.ndarray], documents: np.ndarray) -> None:
        """Adds a batch; `documents` [B, T] is -1 where nothing is scored."""
        texts = self._stream.text_of(documents)
        for number, tally in enumerate(self._tallies):
            tally.add(losses, np.where(texts == number, batch["weights"], 0), batch.get("positions"))

    def entries(self, resamples: int) -> list[dict[str, Any]]:
        """Returns an entry for each text; `loss` is None if none of its tokens was scored."""
        results, ends = [], self._stream.ends.tolist()
        for number, (name, tally) in enumerate(zip(self._stream.names, self._tallies, strict=True)):
            start = ends[number] - len(self._stream.texts[number])
            size = self._rows.bytes_between(start, ends[number])
            bits = None if not size or tally.loss is None else bits_per_byte(tally.loss, tally.tokens, size)
            figures = {**_figures(tally, resamples), "bits_per_byte": bits, "bytes": size}
            results.append({"name": name, "share": self._shares[number], **figures})
        return results


def _tallied(
    run: Run,
    variant: Variant,
    batches: Batches,
    documents: Iterator[np.ndarray] | None = None,
    apart: Apart | None = None,
) -> Tally:
    tally, rules = Tally(variant.length), meshes.rules_of(run.config, run.mesh)
    assert variant.model is not None
    model = scoring.Prepared(variant.model)
    for batch in batches:
        losses, _ = scoring.score(model, run.params, batch, rules)
        of = None if documents is None else next(documents)
        tally.add(losses, batch["weights"], batch.get("positions"), of)
        if apart is not None and of is not None:
            apart.add(losses, batch, of)
    return tally


class Text:
    """The validation split, or its part `eval.split`: see `data.validation.ExactRows` for its rows at each length.

    For sliding windows the first row's worth of text is not scored, so that each token has a whole window before it.
    Separately packed documents are packed again for each length.
    """

    name = "text"

    def __init__(self, run: Run, corpus: Any) -> None:
        self.run, self._corpus = run, corpus
        self._stream = parts.open_split(corpus, run.tokenizer, run.config.eval.split)
        self._joined = run.config.data.packing == "contiguous"
        # Separately packed documents have no more context than themselves.
        self._slides = run.config.eval.sliding > 0 and self._joined

    def _rows(self, length: int) -> int:
        """Returns the rows per batch."""
        return rows_at(length, self.run.config.data.length, self.run.config.eval.batch_size)

    def _packed(self, length: int, most: int) -> Validation:
        config = self.run.config
        return Validation(
            self._stream, config.data.packing, length=length, batch_size=self._rows(length), max_tokens=most
        )

    def _exact(self, length: int, before: int = 0) -> ExactRows:
        return ExactRows(
            self._stream,
            length=length,
            batch_size=self._rows(length),
            training_length=self.run.config.data.length,
            max_tokens=self.run.config.eval.tokens,
            skip=length if self._slides else 0,
            before=before,
        )

    def available(self) -> int:
        """See `Source`."""
        return self._packed(self.run.config.data.length, 0).tokens

    def whole(self) -> tuple[Batches, int, int | None]:
        """See `Source`."""
        result = self._packed(self.run.config.data.length, self.run.config.eval.loss_tokens)
        return result, len(result), result.bytes

    def bytes_note(self) -> dict[str, Any]:
        """See `Source`."""
        if self._stream.byte_counts is not None:
            return {}
        if self._stream.bytes_per_token is None:
            return {"bits_per_byte_reason": "the bytes of token files are unknown without a tokenizer"}
        return {
            "bytes_measured": "bytes a token of a decoded sample",
            "bytes_per_token": self._stream.bytes_per_token,
        }

    def documents(self) -> Iterator[np.ndarray]:
        """See `Source`."""
        return self._packed(self.run.config.data.length, self.run.config.eval.loss_tokens).documents()

    def apart(self) -> Apart | None:
        """See `Source`."""
        config = self.run.config
        if not isinstance(self._stream, MixedStream):
            return None
        return Apart(config, self._stream, self._packed(config.data.length, config.eval.loss_tokens))

    def at(self, length: int) -> Rows:
        """See `Source`."""
        if not self._joined:
            result = self._packed(length, self.run.config.eval.tokens)
            return Rows(result, len(result), 0)
        exact = self._exact(length)
        return Rows(exact, len(exact), exact.dropped)

    def sliding(self, length: int) -> tuple[Batches, int] | None:
        """See `Source`."""
        if not self._slides:
            return None
        result, share = self._exact(length, before=length), self.run.config.eval.sliding
        size = self._rows(length)
        number = sliding.count(length, length, share, size, len(result), size)
        return sliding.windows(result, length, share, size), number

    def reason(self, length: int) -> str | None:
        """See `Source`."""
        exact = self._exact(length)
        if exact.rows or not self._joined:
            return None
        twice = ", and sliding windows need twice the length" if self._slides else ""
        return f"the validation split has {exact.available + (length if self._slides else 0)} tokens{twice}"


class Task:
    """Held-out rows of a task; only answers are scored.

    Up to the training length rows are drawn as in training; beyond it with far copies (see `eval.retrieval.far`).
    """

    def __init__(self, run: Run, name: str) -> None:
        self.config, self.name = run.config, name
        self._task = make(run, name)
        self._far = far(run, self._task)

    def available(self) -> None:
        """See `Source`."""

    def bytes_note(self) -> dict[str, Any]:
        """See `Source`."""
        return {}

    def whole(self) -> tuple[Batches, int, int | None]:
        """See `Source`."""
        rows = self.at(self.config.data.length)
        return rows.batches, rows.number, None

    def documents(self) -> None:
        """See `Source`."""

    def apart(self) -> None:
        """See `Source`."""

    def at(self, length: int) -> Rows:
        """See `Source`."""
        rows = rows_at(length, self.config.data.length, self.config.eval.batch_size)
        total = max(64, RECALL_ROWS * self.config.data.length // length)  # independent of the batch size
        most = beyond(self.config, length)
        task = self._far if most else self._task
        setting = {"length": length, "batch_size": rows, "rows": total, "vary": not most, "beyond": most}
        return Rows(retrieval.evaluation(task, self.config.seed, **setting), -(-total // rows))

    def sliding(self, length: int) -> None:
        """See `Source`: a row has no text before it."""

    def reason(self, length: int) -> str | None:
        """See `Source`."""
        return too_short(self._task, length) or no_filler(self.config, self._far, length)
