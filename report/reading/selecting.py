"""Hyperparameter selection: each value's loss on the selection seeds, the choice, and warnings."""

import math
from dataclasses import dataclass

import numpy as np
import scipy  # a submodule loads at its first use

from report.page.formats import listed
from report.reading.directories import Arm, Study, dig, number, text
from report.reading.measures import from_eval


@dataclass(frozen=True)
class Trial:
    """One value tried for one arm: a loss per seed (nats), and the number of diverged seeds."""

    arm: str
    value: float
    losses: dict[int, float]
    diverged: int

    @property
    def mean(self) -> float:
        """The mean loss; nan if a seed diverged or none is measured."""
        return math.nan if self.diverged or not self.losses else sum(self.losses.values()) / len(self.losses)


def trials(study: Study) -> list[Trial]:
    """Returns every value tried for every arm, by increasing value; empty if the study selected nothing."""
    if study.selection is None:
        return []
    results = []
    for arm in study.arms:
        for value, tried in study.selection.of(arm.name):
            losses = {run.seed: from_eval("loss", "loss")(run) for run in tried.done}
            kept = {seed: loss for seed, loss in losses.items() if math.isfinite(loss)}
            diverged = sum(run.status == "diverged" for run in tried.runs)
            results.append(Trial(arm.name, value, kept, diverged))
    return results


def chosen(study: Study, arm: str) -> float:
    """Returns the value chosen for an arm, from sweep.json; nan if there is none (yet)."""
    return number(study.selection.choices.get(arm, {}).get("value")) if study.selection else math.nan


@dataclass(frozen=True)
class Vertex:
    """The minimum of a quadratic in ln(value) through the losses around the best value of the grid.

    `value` is nan if `refused` says why; `low` and `high`, its 95% interval over selection seeds, are nan with one.
    `fitted` are the least and the largest value that it was fitted to; beyond them an interval knows no number.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    fitted: tuple[float, float] = (math.nan, math.nan)
    refused: str = ""

    @property
    def ends(self) -> str:
        """The interval in words, ` [0.002, above 0.01]`; empty for none."""
        if not math.isfinite(self.low):
            return ""
        least, most = self.fitted
        low = f"below {least:g}" if self.low < least else f"{self.low:.3g}"
        high = f"above {most:g}" if self.high > most else f"{self.high:.3g}"
        return f" [{low}, {high}]"


NEAR = 2  # values of the grid on each side of the best to which the quadratic is fitted


def vertex(study: Study, arm: str) -> Vertex:
    """Returns the value at which an arm's loss is lowest over ln(value), between the grid's values.

    The quadratic is fitted to the mean over selection seeds at the best value and up to NEAR values on each side. The
    interval is Student's t over the seeds, each of which moves the vertex by its own coefficients (to first order).
    """
    tried = [one for one in trials(study) if one.arm == arm and one.value > 0]
    shown = [one for one in tried if math.isfinite(one.mean)]
    if len(shown) < 3:
        return Vertex(refused="fewer than three values are measured")
    best = min(range(len(shown)), key=lambda place: (shown[place].mean, shown[place].value))
    if best in (0, len(shown) - 1):
        return Vertex(refused=f"the best value, {shown[best].value:g}, is at the grid's edge")
    near = shown[max(0, best - NEAR) : best + NEAR + 1]
    seeds = sorted(set.intersection(*(set(one.losses) for one in near)))
    if not seeds:
        return Vertex(refused="no seed has tried every value")
    middle = math.log(shown[best].value)
    x = np.array([math.log(one.value) - middle for one in near])
    bends, slopes, _ = np.polyfit(x, np.array([[one.losses[seed] for seed in seeds] for one in near]), 2)
    bend, slope = float(bends.mean()), float(slopes.mean())
    if not bend > 0:
        return Vertex(refused="the losses around the best value do not bend upwards")
    at = -slope / (2 * bend)
    if not x[0] <= at <= x[-1]:
        return Vertex(refused="the lowest point is outside the values it is fitted to")
    moved = -(slopes - slope) / (2 * bend) + slope * (bends - bend) / (2 * bend**2)
    value, fitted = math.exp(middle + at), (near[0].value, near[-1].value)
    if len(seeds) < 2:
        return Vertex(value, fitted=fitted)
    error = float(moved.std(ddof=1)) / math.sqrt(len(seeds))
    half = float(scipy.special.stdtrit(len(seeds) - 1, 0.975)) * error
    low, high = (math.exp(min(700.0, middle + at + side)) for side in (-half, half))
    return Vertex(value, low, high, fitted)


def vertices(study: Study) -> str:
    """Returns each arm's vertex in words, with its interval and the grid's best; empty without selection."""
    if study.selection is None:
        return ""
    parts = []
    for arm in study.arms:
        result, best = vertex(study, arm.name), chosen(study, arm.name)
        if result.refused:
            parts.append(f"{arm.name} none ({result.refused})")
        else:
            parts.append(f"{arm.name} {result.value:.3g}{result.ends} (grid's best {best:g})")
    field = study.selection.field
    return f"Minimum of a quadratic in ln({field.rsplit('.', 1)[-1]}): {listed(parts)}." if parts else ""


def preface(study: Study) -> str:
    """Returns a sentence on how the study chose its hyperparameter; empty if it chose none."""
    if study.selection is None:
        return ""
    field, seeds = study.selection.field, listed([str(seed) for seed in study.selection.seeds])
    values = [(arm.name, chosen(study, arm.name)) for arm in study.arms]
    message = listed([f"{name} {value:g}" for name, value in values if math.isfinite(value)]) or "none yet"
    noun = "seed" if len(study.selection.seeds) == 1 else "seeds"
    splits = {text(dig(run.evals.get("loss"), "split")) for arm in study.arms for run in arm.done} - {""}
    other = "other seeds and other text" if splits == {"test"} else "other seeds"
    words = f"{field} was chosen for each arm on {noun} {seeds} ({message}) and is reported on {other}."
    return f"{words} {vertices(study)}".strip() if trials(study) else words


def warnings(study: Study, arm: Arm) -> list[tuple[str, str]]:
    """Returns (short, sentence) for doubtful choices of an arm: an edge of the grid, or runs without it."""
    if study.selection is None:
        return []
    field, value = study.selection.field, chosen(study, arm.name)
    results = []
    edge = text(study.selection.choices.get(arm.name, {}).get("edge"))
    if edge:
        words = f"the best {field} of {arm.name}, {value:g}, is the {edge} tried: a better one may be outside"
        results.append(("edge of grid", words))
    trained = {number(dig(run.config, *field.split("."))) for run in arm.done}
    other = sorted(one for one in trained if math.isfinite(one) and not math.isclose(one, value))
    if other and math.isfinite(value):
        used = ", ".join(f"{one:g}" for one in other)
        results.append(("not as chosen", f"runs of {arm.name} trained with {field} {used}, not the {value:g} chosen"))
    return results
