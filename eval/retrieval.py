"""Retrieval over a grid of lengths and depths: teacher-forced, and generated through the KV cache."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import validate
from configs.errors import UserError
from data import passkey
from eval import cells, recall, scoring
from eval.cells import Answers
from eval.progress import Silent
from eval.variants import TRAINED, Variant, at_training_length, rows_at, variants
from training.run import Run

Found = tuple[Answers, Answers | None, np.ndarray]  # teacher-forced, generated, the depths of the grid


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/retrieval.json's content.

    `mqar` asks for the value of a key among the pairs at the row's beginning; `passkey` for a number hidden in noise
    text. `accuracy` is the share of answers whose every token is the likeliest one, teacher-forced, at the training
    length; `exact_match` the share of generated answers that are right. Intervals are Wilson's, 95%.
    """
    task = task_of(run)
    measured, by_length = [], []
    ask = _mqar if task == "mqar" else _passkey
    why = partial(recall.reason, run.config) if task == "mqar" else partial(_too_short, run)
    known: dict[Any, Found] = {}
    for variant in progress.track("retrieval", _lengths(run.config)):
        reason = variant.reason or why(variant.length)
        if variant.model is None or reason:
            by_length.append({**variant.entry, "reason": reason, **cells.overall(NOTHING, None)})
            continue
        key = scoring.function_key(variant.model, variant.length)
        if key not in known:
            known[key] = ask(run, variant)
        found = known[key]
        forced, generated, depths = found
        pairs = recall.pairs_of(run.config) if task == "mqar" else None
        here = cells.by_depth(forced, generated, depths)
        measured += [{**variant.entry, "pairs": pairs, **cell} for cell in here]
        by_length.append({**variant.entry, **cells.overall(forced, generated)})
    return {
        "task": task,
        "accuracy": next(e["accuracy"] for e in by_length if e["multiple"] == 1 and e["scaling"] == TRAINED),
        "cells": measured,
        "by_length": by_length,
        "settings": {"counted": "each pair once, at the last question for it"} if task == "mqar" else {},
    }


NOTHING = Answers(np.zeros(0), np.zeros(0, bool))


def _lengths(config: ConfigDict) -> list[Variant]:
    """Returns the variants asked for, and the run as it was trained, which `accuracy` is about."""
    found = variants(config)
    own = any(variant.multiple == 1 for variant in found)
    return found if own else [at_training_length(config), *found]


def task_of(run: Run) -> str:
    """Returns the task: the one asked for, or mqar where the run trains on it and passkey where it reads text alone."""
    asked = run.config.eval.retrieval.task
    if asked != "auto":
        return asked
    return "mqar" if validate.uses(run.config, "mqar") else "passkey"


def _batches(run: Run, variant: Variant) -> Iterator[tuple[int, int, int]]:
    """Yields (first row, rows, how many of them count) over `eval.retrieval.examples` rows, all batches of one size."""
    total = run.config.eval.retrieval.examples
    rows = min(total, rows_at(variant.length, run.config.data.length, run.config.eval.batch_size))
    for first in range(0, total, rows):
        yield first, rows, min(rows, total - first)


def _mqar(run: Run, variant: Variant) -> Found:
    settings = run.config.eval.retrieval
    forced, generated = [], []
    for first, count, kept in _batches(run, variant):
        rows = recall.rows(run.config, first, count, variant.length)
        losses, likeliest = scoring.score(variant.model, run.params, rows.batch())
        counted = rows.counted & (np.arange(count) < kept)[:, None]
        forced.append((rows.depth[counted], (likeliest == rows.targets)[counted], losses[counted]))
        if settings.generate:
            answer = scoring.answer(variant.model, run.params, rows.tokens[:, : rows.last + 1], max_new=1)
            right = answer[:, 0] == rows.targets[:, rows.last]
            generated.append((rows.depth[:kept, rows.last], right[:kept]))
    return _joined(forced), _joined(generated) if generated else None, cells.centres(settings.depths)


def _too_short(run: Run, length: int) -> str | None:
    """Returns why a run cannot be asked for a passkey at `length`, or None."""
    if run.tokenizer is None:
        return "the run has no tokenizer"
    try:
        needed = passkey.shortest(run.tokenizer) - 1
    except UserError as error:  # a tokenizer of few characters
        return str(error)
    return f"needle and question take {needed} tokens" if length < needed else None


def _passkey(run: Run, variant: Variant) -> Found:
    settings = run.config.eval.retrieval
    depths = np.linspace(0.0, 1.0, settings.depths) if settings.depths > 1 else np.array([0.5])
    forced, generated = [], []
    for depth in depths:
        for first, count, kept in _batches(run, variant):
            seed, length = run.config.seed, variant.length + 1
            rows = passkey.rows(run.tokenizer, seed=seed, first=first, count=count, length=length, depth=float(depth))
            here = np.full(kept, depth)
            losses, right = _forced(run, variant, rows)
            forced.append((here, right[:kept], losses[:kept]))
            if settings.generate:
                generated.append((here, _generated(run, variant, rows)[:kept]))
    return _joined(forced), _joined(generated) if generated else None, depths


def _forced(run: Run, variant: Variant, rows: passkey.Passkey) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean loss of each row's answer in nats a token, whether each of its tokens was the likeliest), [n]."""
    batch = {"tokens": rows.tokens[:, :-1], "targets": rows.tokens[:, 1:]}
    losses, likeliest = scoring.score(variant.model, run.params, batch)
    length = batch["targets"].shape[1]
    answers = np.arange(length) >= length - rows.answer[:, None]
    right = ((likeliest == batch["targets"]) | ~answers).all(axis=1)
    return (losses * answers).sum(axis=1) / rows.answer, right


def _generated(run: Run, variant: Variant, rows: passkey.Passkey) -> np.ndarray:
    """Returns whether each row's answer is generated exactly, bool [n]; shorter prompts are padded on the left."""
    shortest, longest = int(rows.answer.min()), int(rows.answer.max())
    width = rows.tokens.shape[1] - shortest
    shift = rows.answer - shortest  # by how much a row's prompt is shorter than the longest one
    source = np.arange(width) - shift[:, None]
    mask = (source >= 0).astype(np.int32)
    prompts = np.take_along_axis(rows.tokens, np.maximum(source, 0), axis=1)
    answer = scoring.answer(variant.model, run.params, prompts, max_new=longest, mask_BT=mask if shift.any() else None)
    wanted = np.take_along_axis(
        rows.tokens, np.minimum(width - shift[:, None] + np.arange(longest), rows.tokens.shape[1] - 1), 1
    )
    return ((answer == wanted) | (np.arange(longest) >= rows.answer[:, None])).all(axis=1)


def _joined(parts: Sequence[tuple[Any, ...]]) -> Answers:
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))
