"""The columns that a study may ask for in its tables: `columns=["model.num_heads", "loss", "retrieval@512"]`.

A column is a name of COLUMNS, `retrieval@N` (one length of retrieval, in tokens), or a config field by its dotted name.
The arm's name is always the first column.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs import fields
from configs.errors import nearest
from configs.evaluations import EVALUATIONS


@dataclass(frozen=True)
class Choice:
    """A column: what it shows, and the evaluation or the study key without which it would be empty ("" for none)."""

    meaning: str
    evaluation: str = ""
    key: str = ""


def _measured() -> dict[str, Choice]:
    return {
        column.key: Choice(column.meaning, name, column.needs)
        for name, evaluation in EVALUATIONS.items()
        for column in evaluation.columns
    }


# Those of evaluations, then those of every run.
COLUMNS: dict[str, Choice] = {
    **_measured(),
    "parameters": Choice("parameters in all"),
    "flops": Choice("training FLOPs a token"),
    "kv": Choice("KV cache, bytes a token"),
    "kernel": Choice("the attention kernel that ran"),
    "seeds": Choice("seeds done, failed and diverged"),
    "comparable": Choice("what differs from the baseline beside the question"),
}
ONE_LENGTH = re.compile(r"retrieval@[1-9][0-9]*")


def known(name: str) -> bool:
    """True for a name that `columns` may hold."""
    return name in COLUMNS or bool(ONE_LENGTH.fullmatch(name)) or name in fields.types()


def check(columns: Any, given: Mapping[str, Any], where: str) -> list[str]:
    """Returns what is wrong with a study's `columns`; `given` is the study's dictionary."""
    if columns is None:
        return []
    if not isinstance(columns, Sequence) or isinstance(columns, str) or not columns:
        return [f"{where}columns = {columns!r}: must be a list of columns, such as ['loss', 'difference', 'seeds']"]
    problems = []
    for place, name in enumerate(columns):
        if not isinstance(name, str) or not known(name):
            near = nearest(str(name), [*COLUMNS, *fields.types()])
            problems.append(
                f"{where}columns: unknown column {name!r}{near}; there are {', '.join(COLUMNS)}, retrieval@N (N "
                "tokens), and every config field, such as model.num_heads"
            )
        elif name in columns[:place]:
            problems.append(f"{where}columns: {name} is there twice")
        else:
            problems += _without(name, given, where)
    return problems


def _without(name: str, given: Mapping[str, Any], where: str) -> list[str]:
    """Returns that a column would be empty, because the study does not measure it."""
    choice = COLUMNS.get("retrieval" if name.startswith("retrieval@") else name)
    if choice is None:
        return []
    evals = given.get("evals", ["loss"])
    if choice.evaluation and isinstance(evals, Sequence) and choice.evaluation not in evals:
        return [f"{where}columns: {name} needs {choice.evaluation!r} in evals"]
    if choice.key and given.get(choice.key) is None:
        return [f"{where}columns: {name} needs the study's {choice.key}"]
    return []
