"""Retrieval tasks: each deterministic from a seed, for any tokenizer, length and depth.

A task is a source of the training mixture (`config.data.weights.NAME`) and an evaluation
(`config.eval.retrieval.task`), with the same `rows` (see `rows.Task`). `make` builds a task; docs/retrieval.md
describes them all.
"""

from data.retrieval.build import make
from data.retrieval.draws import Draw
from data.retrieval.pair_tasks import PairTask
from data.retrieval.pairs import FarPairs, Mqar, far
from data.retrieval.qa import QuestionAnswering
from data.retrieval.rows import Rows, Task
from data.retrieval.source import TaskSource, evaluation

__all__ = [
    "Draw",
    "FarPairs",
    "Mqar",
    "PairTask",
    "QuestionAnswering",
    "Rows",
    "Task",
    "TaskSource",
    "evaluation",
    "far",
    "make",
]
