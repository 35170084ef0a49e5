"""Retrieval over a grid of lengths and depths: teacher-forced, and generated through the KV cache."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from configs import validate
from data import passkey
from eval import cells, recall, scoring
from eval.cells import Answers
from eval.progress import Silent
from eval.variants import TRAINED, Variant, rows_at, variants
from models import decode
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
    known: dict[Any, Found | str] = {}
    for variant in progress.track("retrieval", variants(run.config)):
        if variant.computed not in known:
            known[variant.computed] = _mqar(run, variant) if task == "mqar" else _passkey(run, variant)
        found = known[variant.computed]
        if isinstance(found, str):
            by_length.append({**variant.entry, "reason": found, **cells.overall(NOTHING, None), "accuracy": None})
            continue
        forced, generated, depths = found
        pairs = recall.pairs_of(run.config) if task == "mqar" else None
        here = cells.by_depth(forced, generated, depths)
        measured += [{**variant.entry, "pairs": pairs, **cell} for cell in here]
        by_length.append({**variant.entry, **cells.overall(forced, generated)})
    own = [entry for entry in by_length if entry["multiple"] == 1 and entry["scaling"] == TRAINED]
    return {
        "task": task,
        "accuracy": own[0]["accuracy"] if own else None,
        "cells": measured,
        "by_length": by_length,
        "settings": {"counted": "answers in the second half of the row"} if task == "mqar" else {},
    }


NOTHING = Answers(np.zeros(0), np.zeros(0, bool))


def task_of(run: Run) -> str:
    """Returns the task: the one asked for, or mqar where the run trains on it and passkey where it reads text alone."""
    asked = run.config.eval.retrieval.task
    if asked != "auto":
        return asked
    return "mqar" if validate.uses(run.config, "mqar") else "passkey"


def _batches(run: Run, variant: Variant) -> Iterator[tuple[int, int]]:
    """Yields (first row, rows) of batches over `eval.retrieval.examples` rows."""
    total = run.config.eval.retrieval.examples
    rows = rows_at(variant.length, run.config.data.length, run.config.eval.batch_size)
    for first in range(0, total, rows):
        yield first, min(rows, total - first)


def _mqar(run: Run, variant: Variant) -> Found | str:
    if variant.model is None:
        return variant.reason or ""
    settings = run.config.eval.retrieval
    forced, generated = [], []
    graph = scoring.graphdef(variant.model)
    for first, count in _batches(run, variant):
        rows = recall.rows(run.config, first, count, variant.length)
        losses, likeliest = scoring.score(variant.model, run.params, rows.batch())
        counted = rows.counted
        forced.append((rows.depth[counted], (likeliest == rows.targets)[counted], losses[counted]))
        if settings.generate:
            answer = decode.generate(graph, run.params, rows.tokens[:, : rows.last + 1], max_new=1)
            right = np.asarray(answer)[:, 0] == rows.targets[:, rows.last]
            generated.append((rows.depth[:, rows.last], right))
    return _joined(forced), _joined(generated) if generated else None, cells.centres(settings.depths)


def _passkey(run: Run, variant: Variant) -> Found | str:
    if variant.model is None:
        return variant.reason or ""
    if run.tokenizer is None:
        return "the run has no tokenizer"
    needed = passkey.shortest(run.tokenizer)
    if variant.length + 1 < needed:
        return f"needle and question take {needed - 1} tokens"
    settings = run.config.eval.retrieval
    depths = np.linspace(0.0, 1.0, settings.depths) if settings.depths > 1 else np.array([0.5])
    forced, generated = [], []
    for depth in depths:
        for first, count in _batches(run, variant):
            seed, length = run.config.seed, variant.length + 1
            rows = passkey.rows(run.tokenizer, seed=seed, first=first, count=count, length=length, depth=float(depth))
            losses, right = _forced(run, variant, rows)
            forced.append((np.full(count, depth), right, losses))
            if settings.generate:
                generated.append((np.full(count, depth), _generated(run, variant, rows)))
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
    """Returns whether each row's answer is generated exactly, bool [n]; rows of equal answer lengths go together."""
    right = np.zeros(len(rows.answer), bool)
    graph = scoring.graphdef(variant.model)
    for size in np.unique(rows.answer):
        chosen = rows.answer == size
        prompts, answers = rows.tokens[chosen, :-size], rows.tokens[chosen, -size:]
        new = np.asarray(decode.generate(graph, run.params, prompts, max_new=int(size)))
        right[chosen] = (new == answers).all(axis=1)
    return right


def _joined(parts: Sequence[tuple[Any, ...]]) -> Answers:
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))
