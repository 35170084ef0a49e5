"""The report: reads the saved files of a sweep or a run; writes tables, plots and one offline page. Imports no JAX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def load(directory: str | Path) -> pd.DataFrame:
    """Returns every number that the evaluations of a sweep's (or one run's) finished runs gave, one a row.

    Columns: study, arm, seed, measure, unit, length, multiple, scaling, depth, position, value, low, high, correct,
    examples. `report.frames.metrics` has the training curves.

    Raises:
        UserError: the directory holds neither a sweep nor a run.
    """
    from report import frames, reading  # pandas takes a second, which importing a part of the report should not

    return frames.results(reading.read(directory))
