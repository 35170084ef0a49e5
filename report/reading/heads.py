"""Numbers of eval/heads.json over all heads and layers."""

import math
import statistics

from report.reading.directories import Run, dig, number, objects, text


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def entropy(run: Run) -> float:
    """Returns the mean over heads of the entropy as a share of its maximum."""
    return _mean([number(one.get("entropy_share")) for one in objects(run.evals.get("heads"), "heads")])


def divergence(run: Run) -> float:
    """Returns the mean over layers of the Jensen-Shannon divergence between heads, nats."""
    return _mean([number(dig(one, "divergence", "mean")) for one in objects(run.evals.get("heads"), "layers")])


def dead(run: Run) -> float:
    """Returns the number of dead heads; nan if not measured."""
    heads = list(objects(run.evals.get("heads"), "heads"))
    return float(sum(bool(text(one.get("dead"))) for one in heads)) if heads else math.nan
