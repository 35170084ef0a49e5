"""Steps and tokens to a target loss: when each run's validation loss first reached it, or that it never did."""

import math
import statistics
from dataclasses import dataclass

from report.reading.directories import Arm, Run, number


@dataclass(frozen=True)
class Reached:
    """When a run reached the target: infinite if it did not (censored).

    Attributes:
        steps, tokens: interpolated linearly between the last validation above the target and the first at or below it.
        until: trained steps; beyond them nothing is known of a run that did not reach the target.
        first: the first validation was already at the target, so it was reached no later than `steps`.
    """

    seed: int
    steps: float
    tokens: float
    until: float
    first: bool = False

    @property
    def censored(self) -> bool:
        """True if the target was not reached."""
        return math.isinf(self.steps)


def of_run(run: Run, target: float) -> Reached | None:
    """Returns when a run reached a validation loss (nats); None for a run that logged none."""
    lines = [(number(row.get("step")), number(row.get("tokens")), number(row.get("val_loss"))) for row in run.metrics]
    points = [line for line in lines if all(map(math.isfinite, line))]
    if not points:
        return None
    until = points[-1][0]
    for place, (step, tokens, loss) in enumerate(points):
        if loss > target:
            continue
        if place == 0:
            return Reached(run.seed, step, tokens, until, first=True)
        before = points[place - 1]
        share = (before[2] - target) / (before[2] - loss)
        steps, spent = (one + share * (two - one) for one, two in zip(before[:2], (step, tokens), strict=True))
        return Reached(run.seed, steps, spent, until)
    return Reached(run.seed, math.inf, math.inf, until)


def of_arm(arm: Arm, target: float) -> list[Reached]:
    """Returns `of_run` for the arm's finished runs."""
    results = [of_run(run, target) for run in arm.done]
    return [one for one in results if one is not None]


def median(results: list[Reached], what: str) -> float:
    """Returns the median of "steps" or "tokens" over runs, counting those that did not reach the target as infinite.

    It is infinite if half or more did not reach it, and nan without a run. Of two middle values the mean.
    """
    values = sorted(getattr(one, what) for one in results)
    return statistics.median(values) if values else math.nan
