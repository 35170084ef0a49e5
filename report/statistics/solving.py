"""Tasks with a sudden transition: the share of seeds that solve one, and the steps they took.

If some seeds find the solution and others do not, the mean over seeds and its interval say little: if one seed in five
makes the transition, Student's interval of 5 seeds contains the true mean 65 times in 100 (docs/log.md). So the report
counts seeds. The sweep file defines "solved", `solved=dict(accuracy=0.9, loss=0.2)`: thresholds of retrieval at the
training length and of the validation loss in training; without it, an accuracy of DEFAULT.
"""

import math
import statistics
from dataclasses import dataclass

from report.page.formats import counted, listed, percent, plural
from report.reading.directories import Arm, Run, Study, number
from report.reading.measures import TRAINED, from_info, retrieval_points
from report.statistics.intervals import Estimate, wilson

DEFAULT = 0.9


@dataclass(frozen=True)
class Solved:
    """One arm's seeds: those that ended, done or diverged, and those that solved the task.

    Attributes:
        steps: of each seed whose validation loss reached the threshold, the first step at which it did.
    """

    arm: str
    seeds: tuple[int, ...]
    solved: tuple[int, ...]
    steps: dict[int, float]

    @property
    def share(self) -> Estimate:
        """The share of seeds that solved it, with Wilson's interval."""
        return wilson(len(self.solved), len(self.seeds))


def solved(study: Study) -> list[Solved]:
    """Returns how many seeds of each arm solved the task; empty if "solved" is not defined."""
    accuracy, loss = _thresholds(study)
    if math.isnan(accuracy) and math.isnan(loss):
        return []
    return [one for arm in study.arms if (one := _arm(arm, accuracy, loss)).seeds]


def _thresholds(study: Study) -> tuple[float, float]:
    """Returns the thresholds (accuracy, loss) from which a seed has solved the task; nan if unused."""
    if study.solved:
        return study.solved.get("accuracy", math.nan), study.solved.get("loss", math.nan)
    requested = any(retrieval_points(arm) for arm in study.arms)
    return (DEFAULT if requested else math.nan), math.nan


def _arm(arm: Arm, accuracy: float, loss: float) -> Solved:
    ended = [run for run in arm.runs if run.status in ("done", "diverged")]
    home = {point.seed: point.value for point in retrieval_points(arm) if point.key == (1.0, TRAINED)}
    steps = {run.seed: _first(run, loss) for run in ended if math.isfinite(loss)}
    steps = {seed: step for seed, step in steps.items() if math.isfinite(step)}
    if math.isfinite(accuracy):
        ended = [run for run in ended if run.status == "diverged" or run.seed in home]
        winners = [run.seed for run in ended if home.get(run.seed, 0.0) >= accuracy]
    else:
        winners = [run.seed for run in ended if run.seed in steps]
    return Solved(arm.name, tuple(run.seed for run in ended), tuple(winners), steps)


def _first(run: Run, loss: float) -> float:
    """Returns the first step whose validation loss is at or below the threshold; nan if none."""
    for line in run.metrics:
        if number(line.get("val_loss")) <= loss:
            return number(line.get("step"))
    final = from_info("val_loss")(run)
    return from_info("step")(run) if final <= loss else math.nan


def sentence(study: Study) -> str:
    """Returns the shares and steps of all arms in words; empty if "solved" is not defined."""
    result = solved(study)
    if not result:
        return ""
    accuracy, loss = _thresholds(study)
    what = [f"accuracy {percent(accuracy, 0)} or more at the training length"] if math.isfinite(accuracy) else []
    what += [f"validation loss {loss:g} or less"] if math.isfinite(loss) else []
    arms = "; ".join(_told(one, math.isfinite(loss)) for one in result)
    return f"Seeds that solved it ({listed(what)}), with 95% intervals: {arms}."


def _told(one: Solved, timed: bool) -> str:
    share = one.share
    ends = f"[{percent(share.low, 0)}, {percent(share.high, 0)}]"
    message = f"{one.arm} {len(one.solved)} of {plural(len(one.seeds), 'seed')} {ends}"
    if not timed or not one.steps:
        return message
    steps = sorted(one.steps.values())
    middle = f", median {counted(statistics.median(steps))}" if len(steps) > 2 else ""
    return f"{message}, that loss after {listed([counted(step) for step in steps])} steps{middle}"
