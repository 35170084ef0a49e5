"""Retrieval over a grid of lengths, depths and numbers of needles: teacher-forced, and generated with a KV cache."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.rules import tasks
from data import retrieval, streams
from data.retrieval.squad import holds
from eval.progress import Quiet
from eval.quality import cells, effective, scoring
from eval.quality.cells import Answers
from eval.quality.conditions import Condition, Found
from eval.variants import TRAINED, Variant, at_training_length, beyond, control, kinds, rows_at, variants
from training.run_directory.run import Run, open_text

MOST_ROWS = 2**32  # per length and depth
NOTHING = Answers(np.zeros(0), np.zeros(0, bool))
MEASURES = ("accuracy", "exact_match", "answers_found")


def evaluate(run: Run, progress: Quiet) -> dict[str, Any]:
    """Returns eval/retrieval.json's content.

    `mqar` asks for the value of a key among the pairs at the beginning of the row; the other tasks are those of
    data/retrieval. `by_length` has an entry for each length, scaling and number of needles ("pairs"), `cells` also for
    each depth. Three measures: `accuracy`, the share of answers whose every token has the highest logit,
    teacher-forced; `exact_match`, the share of answers generated token for token at their position; `answers_found`,
    the share that occur anywhere in the generated text (RULER's measure). `rows` counts rows, of which every answer
    must be right. Intervals are 95%, for the number of independent answers (eval/quality/intervals.py).

    Within the training length rows are as in training. Beyond it each answer's pair or needle occurs once in the row,
    and an entry of `by_length` counts the answers whose copy is more than the training length back ("near" counts the
    others); `distance` has the distances. `control` is the local baseline: the run's model with its attention window
    set to the training length. `measures_distance` is false if that does well, or if no answer is beyond the training
    length: correct answers need not have been retrieved from far then.

    `pairs` is the number that the run's headline is about: the one it trains with, or the largest evaluated. `accuracy`
    is that at the training length, `effective_length` the longest up to which every length reaches the threshold
    (eval/quality/effective.py), for other numbers under "by_pairs". `records` has every answer.
    """
    name = task_of(run)
    task = Task(run, name)
    numbers = sorted(set(run.config.eval.retrieval.needles)) or [task.own]
    headline = task.own if task.own in numbers else numbers[-1]
    measured, by_length, records = [], [], []
    requested = Asked(task)
    grid = [(variant, number) for variant in _lengths(run.config) for number in numbers]
    for variant, number in progress.track("retrieval", grid):
        entry = {**variant.entry, "pairs": number}
        reason = variant.reason or task.reason(variant.length, number)
        if variant.model is None or reason:
            by_length.append({**entry, "reason": reason, **cells.overall(NOTHING, None)})
            continue
        answers, baseline = requested.of(variant, number), requested.control(variant, number)
        condition = Condition(run.config, variant, task.chance(number), answers, baseline)
        measured += [{**entry, **cell} for cell in condition.by_depth()]
        by_length.append({**entry, **condition.overall()})
        records += [{**entry, **record} for record in condition.records()]
    own = [entry for entry in by_length if entry["pairs"] == headline]
    effective_length = {**_effective(run, own)}
    if len(numbers) > 1:
        effective_length["by_pairs"] = {
            str(number): _effective(run, [entry for entry in by_length if entry["pairs"] == number])
            for number in numbers
        }
    return {
        "task": name,
        **({"questions": task.task.squad.sha256} if isinstance(task.task, retrieval.QuestionAnswering) else {}),
        "pairs": headline,
        "accuracy": next(e["accuracy"] for e in own if e["multiple"] == 1 and e["scaling"] == TRAINED),
        "cells": measured,
        "by_length": by_length,
        "effective_length": effective_length,
        "settings": task.settings,
        "records": records,
    }


class Asked:
    """A task's answers for each variant; models that compute the same function are evaluated once."""

    def __init__(self, task: "Task") -> None:
        self._task, self._config = task, task.run.config
        self._known: dict[Any, Found] = {}

    def of(self, variant: Variant, number: int | None) -> Found:
        """Returns the answers of a variant that has a model."""
        assert variant.model is not None, "`reason` refuses this"
        key = (number, scoring.function_key(variant.model, variant.length))
        if key not in self._known:
            self._known[key] = self._task.ask(variant, number)
        return self._known[key]

    def control(self, variant: Variant, number: int | None) -> tuple[Variant, Found | None] | None:
        """Returns the local baseline at a variant's length and its answers; None if there is none."""
        if not self._config.eval.retrieval.control or not beyond(self._config, variant.length):
            return None
        local = control(self._config, variant)
        return local, None if local.model is None else self.of(local, number)


def _effective(run: Run, by_length: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    threshold = run.config.eval.retrieval.threshold
    return {measure: effective.lengths(by_length, threshold, measure) for measure in MEASURES}


def _lengths(config: ConfigDict) -> list[Variant]:
    """Returns the requested variants, and the run as trained, which `accuracy` is about."""
    result = variants(config)
    own = any(variant.multiple == 1 for variant in result)
    return result if own else [at_training_length(config), *result]


def task_of(run: Run) -> str:
    """Returns the task: the requested one, or the one the run trains on, or passkey if it reads only text."""
    return tasks.asked(run.config)


def _batches(run: Run, variant: Variant) -> Iterator[tuple[int, int, int]]:
    """Yields (first row, rows, how many of them count) over `eval.retrieval.examples` rows, all batches of one size."""
    total = run.config.eval.retrieval.examples
    rows = min(total, rows_at(variant.length, run.config.data.length, run.config.eval.batch_size))
    for first in range(0, total, rows):
        yield first, rows, min(rows, total - first)


COUNTED = "each answer once; beyond the training length those whose nearest copy is farther back than it"


class Task:
    """A task of data/retrieval, on held-out rows; haystacks of text are cut from the validation split."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.settings = run, {"counted": COUNTED, "local_above_chance": tasks.LOCAL}
        self.task: retrieval.Task | None = None
        self._far: retrieval.Task | None = None
        try:
            self.task = make(run, name)
            self._far = far(run, self.task)
        except UserError as error:  # a tokenizer with too few characters, no text
            self._why = str(error)
        self.own = None if self.task is None else self.task.needles

    def reason(self, length: int, needles: int | None) -> str | None:
        """Returns why the run cannot be evaluated at `length`, or None."""
        if self.task is None:
            return self._why
        needed, size = tasks.bare_vocabulary(self.run.config, self.task.name), self.run.config.model.vocab_size or 0
        if size < needed:
            return f"the model has {size} tokens, {self.task.name} needs {needed}"
        return too_short(self.task, length, needles) or no_filler(self.run.config, self._far, length, needles)

    def chance(self, needles: int | None) -> float:
        """Returns the share of answers that uniform guessing among all values gets right."""
        assert self.task is not None, "`reason` refuses this"
        return self.task.chance(needles)

    def ask(self, variant: Variant, needles: int | None) -> Found:
        """Returns the answers at one length with one scaling.

        If a short row has no other position for the needle, two depths of the grid give the same row: it counts once,
        or one answer would count as several.
        """
        run, settings = self.run, self.run.config.eval.retrieval
        task = self._far if beyond(run.config, variant.length) else self.task
        assert task is not None and variant.model is not None, "`reason` refuses this"
        points = np.linspace(0.0, 1.0, settings.depths) if settings.depths > 1 else np.array([0.5])
        depths = cells.centres(settings.depths) if task.all_depths else points
        draw, length = retrieval.Draw(run.config.seed, held_out=True), variant.length + 1
        forced, generated = [], []
        requested: set[bytes] = set()
        places: dict[int, set[int]] = {}
        for point, depth in enumerate([None] if task.all_depths else points.tolist()):
            for first, count, kept in _batches(run, variant):
                rows = task.rows(draw, first, count, length=length, depth=depth, needles=needles)
                if rows.spans.shape[1] == 1 and not task.all_depths:
                    places.setdefault(point, set()).update(cells.nearest(rows.depths[:kept, 0], depths).tolist())
                new = np.array([row.tobytes() not in requested for row in rows.tokens]) & (np.arange(count) < kept)
                requested.update(row.tobytes() for row in rows.tokens[:kept])
                if not new.any():
                    continue
                counted = (rows.spans[:, :, 1] > 0) & new[:, None]
                losses, right = _forced(run, variant, rows)
                number = first + point * MOST_ROWS
                forced.append(_answers(rows, counted, right, number, loss=losses))
                if settings.generate:
                    counted &= rows.spans[:, :, 0] >= rows.prompts[:, None]
                    right, result, said = _generated(run, variant, rows)
                    generated.append(_answers(rows, counted, right, number, found=result, said=said))
        given = Answers.joined(generated) if generated else None
        return Found(Answers.joined(forced), given, depths, _merged(places, depths))


def _merged(places: Mapping[int, set[int]], depths: np.ndarray) -> dict[int, list[float]]:
    """Returns {index of a cell: the other depths of the grid whose needles all fell into it}."""
    results: dict[int, list[float]] = {}
    for point, cells_of in places.items():
        if len(cells_of) == 1 and cells_of != {point}:
            results.setdefault(next(iter(cells_of)), []).append(float(depths[point]))
    return results


def make(run: Run, name: str) -> retrieval.Task:
    """Returns a task for evaluating a run; haystacks of text are cut from the run's validation split.

    Raises:
        UserError: the run lacks a suitable tokenizer, or text.
    """
    expected = run.config.eval.retrieval.haystack
    expected = run.config.data.retrieval.haystack if expected == "auto" else expected
    text = None
    if name in tasks.IN_TEXT and run.tokenizer is not None and tasks.haystack(name, expected) == "text":
        text = _text(run)
    config = run.config
    if name in tasks.IN_FILES:
        config = config.copy_and_resolve_references()
        config.data.retrieval[tasks.IN_FILES[name]] = tasks.file_asked(run.config, name)
    return retrieval.make(name, config, run.tokenizer, text, expected)


def far(run: Run, task: retrieval.Task) -> retrieval.Task:
    """Returns the task for lengths beyond the training length; only tasks of pairs have other rows there."""
    if not isinstance(task, retrieval.PairTask):
        return task
    settings, power = run.config.eval.retrieval, run.config.data.mqar.power
    return retrieval.far(task, settings.filler, power=power, text=lambda: _text(run))


def too_short(task: retrieval.Task, length: int, needles: int | None = None) -> str | None:
    """Returns why a task has no rows of `length` tokens, or None."""
    short = task.shortest(needles) - 1
    if length >= short:
        return None
    pairs = f"{needles or task.needles} pairs and their questions"
    return f"{pairs if task.name in tasks.FILLED else 'needle and question'} take {short} tokens"


def no_filler(config: ConfigDict, task: retrieval.Task | None, length: int, needles: int | None = None) -> str | None:
    """Returns why a task's rows beyond the training length cannot be filled, or None."""
    return task.reason(needles) if isinstance(task, retrieval.FarPairs) and beyond(config, length) else None


def _text(run: Run) -> streams.Stream | None:
    """Returns the validation split for haystacks and filler; None if the run reads no text."""
    if run.tokenizer is None:
        return None
    corpus = open_text(run)
    return None if corpus is None else streams.open_stream(corpus, run.tokenizer, "validation")


def _forced(run: Run, variant: Variant, rows: retrieval.Rows) -> tuple[np.ndarray, np.ndarray]:
    """Returns (each answer's mean loss in nats per token, whether all of its tokens have the highest logit), [n, A]."""
    losses, likeliest = scoring.score(variant.model, run.params, rows.batch())
    column = np.arange(likeliest.shape[1]) + 1  # of the predicted token
    # [n, A, T]
    inside = (column >= rows.spans[:, :, :1]) & (column < rows.spans[:, :, 1:])
    right = ((likeliest == rows.tokens[:, 1:])[:, None] | ~inside).all(axis=2)
    return (losses[:, None] * inside).sum(axis=2) / np.maximum(inside.sum(axis=2), 1), right


def _generated(run: Run, variant: Variant, rows: retrieval.Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Continues each row's prompt greedily, by as many tokens as its answers have plus `extra_tokens`.

    Prompts of different lengths are padded on the left, to a common width per batch, so that few programs are compiled.

    Returns:
        (whether each answer matches at its position, bool [n, A]; whether it occurs anywhere in the generated text,
            bool [n, A]; the generated text, object [n]).
    """
    longest = int((rows.ends - rows.prompts).max())
    ragged = bool((rows.prompts != rows.prompts[0]).any())
    width = rows.tokens.shape[1] - 1 if ragged else int(rows.prompts[0])
    source = np.arange(width) - (width - rows.prompts[:, None])
    mask = (source >= 0).astype(np.int32)
    prompts = np.take_along_axis(rows.tokens, np.maximum(source, 0), axis=1)
    answer = _continued(run, variant, prompts, longest, mask if ragged else None)
    column = rows.prompts[:, None] + np.arange(longest)
    same = answer[:, :longest] == np.take_along_axis(rows.tokens, np.minimum(column, rows.tokens.shape[1] - 1), axis=1)
    inside = (column[:, None] >= rows.spans[:, :, :1]) & (column[:, None] < rows.spans[:, :, 1:])
    right = (same[:, None] | ~inside).all(axis=2)
    budgets = rows.ends - rows.prompts + answer.shape[1] - longest  # for each row's own answers, not the longest's
    said = _texts([row[:most] for row, most in zip(answer, budgets, strict=True)], _words(run))
    result = np.zeros(right.shape, bool)
    for row, references in enumerate(rows.references):
        result[row, : len(references)] = [holds(said[row], reference) for reference in references]
    return right, result, said


def _continued(
    run: Run, variant: Variant, prompts: np.ndarray, tokens: int, mask: np.ndarray | None = None
) -> np.ndarray:
    """Returns int [n, tokens + extra_tokens], or fewer where a learned table ends."""
    assert variant.model is not None, "`reason` refuses this"
    most = tokens + run.config.eval.retrieval.extra_tokens
    if "learned" in kinds(variant.model):
        most = max(tokens, min(most, variant.model.position.max_length + 1 - prompts.shape[1]))
    return scoring.answer(variant.model, run.params, prompts, max_new=most, mask_BT=mask)


def _answers(
    rows: retrieval.Rows,
    counted: np.ndarray,
    right: np.ndarray,
    number: int,
    *,
    loss: np.ndarray | None = None,
    found: np.ndarray | None = None,
    said: np.ndarray | None = None,
) -> Answers:
    """Returns the answers that count, of [n, A]; `number` is that of the first row."""
    row, place = np.nonzero(counted)
    return Answers(
        depth=rows.depths[counted],
        correct=right[counted],
        loss=None if loss is None else loss[counted],
        row=number + row,
        found=None if found is None else found[counted],
        distance=rows.distances[counted],
        reference=_texts([rows.references[r][p] for r, p in zip(row, place, strict=True)], str),
        said=None if said is None else said[row],
    )


def _words(run: Run) -> Any:
    in_words = tasks.asked(run.config) in tasks.IN_TEXT and run.tokenizer is not None
    return run.tokenizer.decode if in_words and run.tokenizer is not None else _numbers


def _numbers(tokens: Any) -> str:
    """Returns tokens as numbers, like the references of tasks in bare tokens."""
    return " ".join(map(str, np.atleast_1d(tokens).tolist()))


def _texts(values: Any, text: Any = _numbers) -> np.ndarray:
    """Returns the values as texts, object [n]."""
    result = np.empty(len(values), object)
    result[:] = [text(value) for value in values]
    return result
