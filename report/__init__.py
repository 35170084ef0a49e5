"""The report: reads the saved files of a sweep or a run; writes tables, plots and one offline page. Imports no JAX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import configs as configs  # a clear error if the packages are not installed

if TYPE_CHECKING:
    import pandas as pd


def load(directory: str | Path, what: str = "results") -> pd.DataFrame:
    """Returns the numbers of a sweep or a run as a tidy data frame.

    Args:
        directory: of the sweep or run.
        what: "results", every number measured by evaluations of finished runs, one per row: study, arm, seed, measure,
            unit, length, multiple, scaling, depth, position, value, low, high, correct, examples. "metrics": the
            training curves, one row per logged line. "runs": one row per run with its state, sizes, times, and every
            config field in which the study's arms differ. "comparisons": one row per arm and measure against the
            baseline, with the difference, its interval, p, p after Holm's correction, and the verdict.

    Raises:
        UserError: the directory is neither a sweep nor a run, or `what` is none of the four.
    """
    from configs.errors import UserError
    from report.claims import comparisons
    from report.reading import (  # pandas takes a second to import, which importing a part of the report should not
        directories,
        frames,
    )

    made = {"comparisons": comparisons.frame, "results": frames.results, "metrics": frames.metrics, "runs": frames.runs}
    if what not in made:
        raise UserError(f"what = {what!r}: must be {', '.join(made)}")
    return made[what](directories.read(directory))
