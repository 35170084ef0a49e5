"""What an evaluation declares. An evaluation is one file here with one object, and a line in the registry."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def dig(raw: Any, *keys: str) -> Any:
    """Returns what lies at a path of keys in a JSON value; None where there is nothing."""
    for key in keys:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


def finite(value: Any) -> bool:
    """Tells whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def load(name: str) -> Any:
    """Returns what `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Measure:
    """A number of an evaluation's JSON file that is a row of the results frame for every run.

    Attributes:
        name, unit: as the frame has them.
        keys: where it lies in the file.
        interval: where its interval lies; empty: it has none.
        line: how the terminal shows it when it was measured, a format of the number and of `interval`, which is empty
            or " [low, high]". Empty: it is not shown.
        scale: by which the number is multiplied in `line`.
    """

    name: str
    unit: str
    keys: tuple[str, ...]
    interval: tuple[str, ...] = ()
    line: str = ""
    scale: float = 1

    def shown(self, result: Mapping[str, Any]) -> str:
        """Returns `line` of a file's content; empty where it has no finite number."""
        value = dig(result, *self.keys)
        if not self.line or not finite(value):
            return ""
        ends = dig(result, *self.interval) if self.interval else None
        low, high = ends if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
        interval = f" [{low:.4f}, {high:.4f}]" if finite(low) and finite(high) else ""
        return self.line.format(value * self.scale, interval=interval)


@dataclass(frozen=True)
class Column:
    """A column of the table of arms: the median over seeds of one number of an evaluation's file, in most cases.

    Attributes:
        key: by which a study asks for it (`columns=`).
        meaning: what it shows, in words.
        heading, note: over the column; empty: the report's own code draws it (`report/page/table.py`), and the rest is
            not read.
        source: where the number lies in the file, for the page.
        number: `module:function` of `report` from a run to the number; empty: it lies at `source`.
        mean: over seeds in place of the median.
        show: a format of the number, or the name of a function of `report.page.formats`.
        ends: where the file has the quartiles over repeats, which are shown for an arm of one seed; empty: none.
        below: `module:function` of `report` from an arm to a second, smaller line; empty: none.
        raw: its name in table.csv.
        default: whether it is there where a study does not ask for columns.
        needs: a key of the study without which it would be empty.
    """

    key: str
    meaning: str
    heading: str = ""
    note: str = ""
    source: str = ""
    number: str = ""
    mean: bool = False
    show: str = "{:g}"
    ends: tuple[str, ...] = ()
    below: str = ""
    raw: str = ""
    default: bool = True
    needs: str = ""


@dataclass(frozen=True)
class Shared:
    """What arms must share for numbers of an evaluation to be compared.

    Attributes:
        name, words: in a mark, and in its sentence.
        read: `module:function` of `report` from a run to it in words; empty where it is not known.
    """

    name: str
    words: str
    read: str


@dataclass(frozen=True)
class Evaluation:
    """One question that a run directory is asked; its answer is DIR/eval/NAME.json.

    Its settings are the fields of `config.eval` and `config.data` whose `compare` in `configs/base.py` names it or its
    kind, and those without `compare`.

    Attributes:
        name: of --evals and of the file.
        module: whose `evaluate(run, progress)` returns what the file holds beside the fields that all share.
        kind: quality, cost, inspection or check; fields of `configs/base.py` shape all evaluations of a kind.
        default: whether it is done where nothing is asked for by name.
        timed: whether a neighbour's work would disturb it, so that it is done when the machine has nothing else to do.
        divided: whether each row's tokens may be divided over devices (`--config.mesh.context`).
        measures: rows of the results frame; those by length, depth or position are the report's own.
        columns: of the table of arms.
        charts: `module:function` of `report`, from a study to a figure, several, or None where there is no data.
        resolved: keys of the file that say what unset settings resolved to; they are part of the question.
        lists: settings that are lists of conditions, each with a number of its own: runs are compared on those that
            both were asked.
        shared: what must be equal beside the question.
    """

    name: str
    module: str
    kind: str
    default: bool = True
    timed: bool = False
    divided: bool = False
    measures: tuple[Measure, ...] = ()
    columns: tuple[Column, ...] = ()
    charts: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    shared: tuple[Shared, ...] = ()

    def load(self) -> Callable[[Any, Any], dict[str, Any]]:
        """Returns the function; this imports JAX."""
        function: Callable[[Any, Any], dict[str, Any]] = load(f"{self.module}:evaluate")
        return function

    def line(self, result: Mapping[str, Any]) -> str:
        """Returns the chief numbers of a file's content for the terminal; empty where it has none."""
        return "; ".join(filter(None, (measure.shown(result) for measure in self.measures)))
