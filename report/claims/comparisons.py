"""All comparisons of a report as a data frame, one row per comparison."""

import pandas as pd

from report.claims.comparing import comparisons
from report.reading.directories import Sweep

COLUMNS = [
    "study", "arm", "baseline", "measure", "difference", "low", "high", "seeds", "p", "p_holm", "family",
    "verdict", "within_care", "smallest_seen", "why", "marks",
]  # fmt: skip


def frame(sweep: Sweep) -> pd.DataFrame:
    """Returns every arm against its baseline: `difference` is arm - baseline, in nats of loss or as a share of 1.

    `low` and `high` are the 95% interval of that comparison, `p_holm` is p after Holm's correction over `family`
    comparisons, `smallest_seen` the smallest true difference that the design detects 4 times in 5.
    """
    rows = [
        (
            study.name, one.arm, one.baseline, one.measure, one.difference.mean, one.difference.low,
            one.difference.high, len(one.difference.seeds), one.difference.p, one.p_holm, one.family, one.verdict,
            one.within_care, one.smallest_seen, one.why, "; ".join(f"{mark.level}: {mark.words}" for mark in one.marks),
        )
        for study in sweep.studies
        for one in comparisons(study)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)
