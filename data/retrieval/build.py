"""Builds a task from a config; `configs.rules.tasks.RETRIEVAL` names the file that makes it."""

import importlib

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError, nearest
from configs.rules import tasks
from data.retrieval.draws import Dice
from data.retrieval.haystacks import NOISE
from data.retrieval.in_text import TextTask
from data.retrieval.pairs import Mqar
from data.retrieval.rows import Task
from data.retrieval.setting import Setting
from data.streams import Stream
from data.tokenizers import Tokenizer


def make(name: str, config: ConfigDict, tokenizer: Tokenizer | None, text: Stream | None, haystack: str = "") -> Task:
    """Returns a task as set by `config.data.retrieval` (and `config.data.mqar`, for tasks of pairs).

    Args:
        name: of `configs.rules.tasks.SYNTHETIC`; `mqar` is for evaluation, `data/mqar.py` makes its training rows.
        config: resolved.
        tokenizer: the run's; tasks in bare tokens need none.
        text: the split that haystacks of text are cut from: train for training, validation for evaluation.
        haystack: overrides `data.retrieval.haystack`.

    Raises:
        UserError: an unknown name, a missing tokenizer or text, or a tokenizer that cannot encode the task.
    """
    if name not in tasks.SYNTHETIC:
        raise UserError(f"{name!r} is not a retrieval task{nearest(name, tasks.SYNTHETIC)}")
    mqar = config.data.mqar
    if name == "mqar":  # as many pairs as the training length holds
        return Mqar(max(1, min(mqar.pairs, (config.data.length + 1) // 4, mqar.vocab_size // 2)), mqar.vocab_size)
    hay = tasks.haystack(name, haystack or config.data.retrieval.haystack)
    module = importlib.import_module(f"data.retrieval.{tasks.RETRIEVAL[name].module}")
    task: Task = module.make(Setting(name, config, tokenizer, text, hay))
    if isinstance(task, TextTask):
        _check(task)
    return task


def _check(task: TextTask) -> None:
    """Refuses a tokenizer that does not reproduce the task's words.

    Raises:
        UserError: with what it cannot encode.
    """
    sample = task.sample(Dice(np.zeros(2, np.uint64), 0, 0), task.needles)
    pieces = [piece for needle in sample.needles for piece in needle]
    pieces += [sample.introduction, *sample.question, sample.between, *task.alphabet()]
    if task.haystack.kind in ("noise", "distractors"):
        pieces.append(NOISE)
    task.encode.check(task.name, pieces)
