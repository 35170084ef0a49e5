"""Retrieval over a grid of lengths and depths: teacher-forced, and generated through the KV cache."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import tasks
from configs.errors import UserError
from data import retrieval, streams
from eval import cells, effective, recall, scoring
from eval.cells import Answers
from eval.progress import Silent
from eval.variants import TRAINED, Variant, at_training_length, rows_at, variants
from training.run import Run, open_data

Found = tuple[Answers, Answers | None, np.ndarray]  # teacher-forced, generated, the depths of the grid


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/retrieval.json's content.

    `mqar` asks for the value of a key among the pairs at the row's beginning; the other tasks are those of
    data/retrieval. `accuracy` is the share of answers whose every token is the likeliest one, teacher-forced, at the
    training length; `exact_match` the share of generated answers that are right; `rows` count rows, of which every
    answer must be right. Intervals are Wilson's, 95%. `effective_length` is the longest up to which every length
    reaches the threshold (eval/effective.py). `records` has every answer.
    """
    name = task_of(run)
    task: Mqar | Task = Mqar(run) if name == "mqar" else Task(run, name)
    measured, by_length, records = [], [], []
    known: dict[Any, Found] = {}
    for variant in progress.track("retrieval", _lengths(run.config)):
        reason = variant.reason or task.reason(variant.length)
        if variant.model is None or reason:
            by_length.append({**variant.entry, "reason": reason, **cells.overall(NOTHING, None)})
            continue
        key = scoring.function_key(variant.model, variant.length)
        if key not in known:
            known[key] = task.ask(variant)
        forced, generated, depths = known[key]
        here = cells.by_depth(forced, generated, depths)
        measured += [{**variant.entry, "pairs": task.pairs, **cell} for cell in here]
        by_length.append({**variant.entry, **cells.overall(forced, generated)})
        records += [{**variant.entry, **record} for record in cells.records(forced, generated)]
    threshold = run.config.eval.retrieval.threshold
    return {
        "task": name,
        "accuracy": next(e["accuracy"] for e in by_length if e["multiple"] == 1 and e["scaling"] == TRAINED),
        "cells": measured,
        "by_length": by_length,
        "effective_length": {
            measure: effective.lengths(by_length, threshold, measure) for measure in ("accuracy", "exact_match")
        },
        "settings": task.settings,
        "records": records,
    }


MOST_ROWS = 2**32  # a length and point of depth
NOTHING = Answers(np.zeros(0), np.zeros(0, bool))


def _lengths(config: ConfigDict) -> list[Variant]:
    """Returns the variants asked for, and the run as it was trained, which `accuracy` is about."""
    found = variants(config)
    own = any(variant.multiple == 1 for variant in found)
    return found if own else [at_training_length(config), *found]


def task_of(run: Run) -> str:
    """Returns the task: the one asked for, or the one the run trains on, or passkey where it reads text alone."""
    asked = run.config.eval.retrieval.task
    if asked != "auto":
        return asked
    return "mqar" if tasks.uses(run.config, "mqar") else tasks.main_task(run.config) or "passkey"


def _batches(run: Run, variant: Variant) -> Iterator[tuple[int, int, int]]:
    """Yields (first row, rows, how many of them count) over `eval.retrieval.examples` rows, all batches of one size."""
    total = run.config.eval.retrieval.examples
    rows = min(total, rows_at(variant.length, run.config.data.length, run.config.eval.batch_size))
    for first in range(0, total, rows):
        yield first, rows, min(rows, total - first)


class Mqar:
    """Key-value recall over bare pairs, asked again and again along the row."""

    def __init__(self, run: Run) -> None:
        self.run, self.pairs = run, recall.pairs_of(run.config)
        self.settings = {"counted": "each pair once, at the last question for it"}

    def reason(self, length: int) -> str | None:
        """Returns why the run cannot be asked at `length`, or None."""
        return recall.reason(self.run.config, length)

    def ask(self, variant: Variant) -> Found:
        """Returns the answers at one length under one scaling."""
        run, settings = self.run, self.run.config.eval.retrieval
        forced, generated = [], []
        for first, count, kept in _batches(run, variant):
            rows = recall.rows(run.config, first, count, variant.length)
            losses, likeliest = scoring.score(variant.model, run.params, rows.batch())
            counted = rows.counted & (np.arange(count) < kept)[:, None]
            right = (likeliest == rows.targets)[counted]
            forced.append((rows.depth[counted], right, losses[counted], first + np.nonzero(counted)[0]))
            if settings.generate:
                answer = scoring.answer(variant.model, run.params, rows.tokens[:, : rows.last + 1], max_new=1)
                right = (answer[:, 0] == rows.targets[:, rows.last])[:kept]
                generated.append((rows.depth[:kept, rows.last], right, None, first + np.arange(kept)))
        return _joined(forced), _joined(generated) if generated else None, cells.centres(settings.depths)


class Task:
    """A task of data/retrieval, over held-out rows; haystacks of text are cut from the validation split."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.settings = run, {"counted": "each answer, where what it is about lies"}
        self.task: retrieval.Task | None = None
        try:
            self.task = make(run, name)
        except UserError as error:  # a tokenizer of few characters, no text
            self._why = str(error)
        self.pairs = None if self.task is None else self.task.needles

    def reason(self, length: int) -> str | None:
        """Returns why the run cannot be asked at `length`, or None."""
        if self.task is None:
            return self._why
        needed, size = tasks.bare_vocabulary(self.run.config, self.task.name), self.run.config.model.vocab_size or 0
        if size < needed:
            return f"the model has {size} tokens, {self.task.name} needs {needed}"
        short = self.task.shortest() - 1
        return f"needle and question take {short} tokens" if length < short else None

    def ask(self, variant: Variant) -> Found:
        """Returns the answers at one length under one scaling."""
        run, settings, task = self.run, self.run.config.eval.retrieval, self.task
        assert task is not None, "there is a reason not to ask"
        points = np.linspace(0.0, 1.0, settings.depths) if settings.depths > 1 else np.array([0.5])
        forced, generated = [], []
        for point, depth in enumerate([None] if task.all_depths else points.tolist()):
            for first, count, kept in _batches(run, variant):
                draw, length = retrieval.Draw(run.config.seed, held_out=True), variant.length + 1
                rows = task.rows(draw, first, count, length=length, depth=depth)
                counted = (rows.spans[:, :, 1] > 0) & (np.arange(count) < kept)[:, None]
                losses, right = _forced(run, variant, rows)
                forced.append((rows.depths[counted], right[counted], losses[counted], _rows(first, counted, point)))
                if settings.generate:
                    counted &= rows.spans[:, :, 0] >= rows.prompts[:, None]
                    right = _generated(run, variant, rows)[counted]
                    generated.append((rows.depths[counted], right, None, _rows(first, counted, point)))
        depths = cells.centres(settings.depths) if task.all_depths else points
        return _joined(forced), _joined(generated) if generated else None, depths


def make(run: Run, name: str) -> retrieval.Task:
    """Returns a task as a run is asked it, its haystack cut from the run's validation split where it is text.

    Raises:
        UserError: the run cannot be asked it: no tokenizer or one of few characters, or no text.
    """
    wanted = run.config.eval.retrieval.haystack
    wanted = run.config.data.retrieval.haystack if wanted == "auto" else wanted
    text = None
    if name in tasks.IN_TEXT and run.tokenizer is not None and tasks.haystack(name, wanted) == "text":
        corpus = open_data(run.config)
        text = None if corpus is None else streams.open_stream(corpus, run.tokenizer, "validation")
    return retrieval.make(name, run.config, run.tokenizer, text, wanted)


def _forced(run: Run, variant: Variant, rows: retrieval.Rows) -> tuple[np.ndarray, np.ndarray]:
    """Returns (each answer's mean loss in nats a token, whether each of its tokens was the likeliest), [n, A] both."""
    losses, likeliest = scoring.score(variant.model, run.params, rows.batch())
    column = np.arange(likeliest.shape[1]) + 1  # of the token that is predicted
    # [n, A, T]
    inside = (column >= rows.spans[:, :, :1]) & (column < rows.spans[:, :, 1:])
    right = ((likeliest == rows.tokens[:, 1:])[:, None] | ~inside).all(axis=2)
    return (losses[:, None] * inside).sum(axis=2) / np.maximum(inside.sum(axis=2), 1), right


def _generated(run: Run, variant: Variant, rows: retrieval.Rows) -> np.ndarray:
    """Returns whether each answer after a row's prompt is generated, at its place, bool [n, A].

    Prompts of different lengths are padded on the left, to a width that batches share, so that few programs are
    compiled.
    """
    longest = int((rows.ends - rows.prompts).max())
    ragged = bool((rows.prompts != rows.prompts[0]).any())
    width = rows.tokens.shape[1] - 1 if ragged else int(rows.prompts[0])
    source = np.arange(width) - (width - rows.prompts[:, None])
    mask = (source >= 0).astype(np.int32)
    prompts = np.take_along_axis(rows.tokens, np.maximum(source, 0), axis=1)
    answer = scoring.answer(variant.model, run.params, prompts, max_new=longest, mask_BT=mask if ragged else None)
    column = rows.prompts[:, None] + np.arange(longest)
    same = answer == np.take_along_axis(rows.tokens, np.minimum(column, rows.tokens.shape[1] - 1), axis=1)
    inside = (column[:, None] >= rows.spans[:, :, :1]) & (column[:, None] < rows.spans[:, :, 1:])
    return (same[:, None] | ~inside).all(axis=2)


def _joined(parts: Sequence[tuple[Any, ...]]) -> Answers:
    depth, correct, loss, row = zip(*parts, strict=True)
    whole = None if loss[0] is None else np.concatenate(loss)
    return Answers(np.concatenate(depth), np.concatenate(correct), whole, np.concatenate(row))


def _rows(first: int, counted: np.ndarray, point: int) -> np.ndarray:
    """Returns the row of each answer counted in [n, A]; the same row asked at another point of depth is another."""
    return first + np.nonzero(counted)[0] + point * MOST_ROWS
