"""The report: reads the saved files of a sweep or a run; writes tables, plots and one offline page. Imports no JAX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import configs as configs  # which tells a Python without the packages in a line

if TYPE_CHECKING:
    import pandas as pd


def load(directory: str | Path, what: str = "results") -> pd.DataFrame:
    """Returns a sweep's (or one run's) numbers as a tidy data frame.

    Args:
        directory: the sweep's or the run's.
        what: "results", every number that evaluations of finished runs gave, one a row: study, arm, seed, measure,
            unit, length, multiple, scaling, depth, position, value, low, high, correct, examples. "metrics": the
            training curves, a row a logged line. "runs": a row a run with its state, sizes, times, and every config
            field in which the study's arms differ. "comparisons": a row an arm and measure against the baseline, with
            the difference, its interval, p, p after Holm's correction, and the verdict.

    Raises:
        UserError: the directory holds neither a sweep nor a run, or `what` is none of the four.
    """
    from configs.errors import UserError
    from report.claims import comparisons
    from report.reading import (  # pandas takes a second, which importing a part of the report should not
        directories,
        frames,
    )

    made = {"comparisons": comparisons.frame, "results": frames.results, "metrics": frames.metrics, "runs": frames.runs}
    if what not in made:
        raise UserError(f"what = {what!r}: must be {', '.join(made)}")
    return made[what](directories.read(directory))
