"""What trying a hyperparameter gave: each value's loss on the selection seeds, what was chosen, and what warns."""

import math
from dataclasses import dataclass

from report.page.formats import listed
from report.reading.directories import Arm, Study, dig, number, text
from report.reading.measures import from_eval


@dataclass(frozen=True)
class Trial:
    """One value tried for one arm: a loss a seed (nats), and how many seeds diverged."""

    arm: str
    value: float
    losses: dict[int, float]
    diverged: int

    @property
    def mean(self) -> float:
        """The mean loss; nan where a seed diverged or none is measured."""
        return math.nan if self.diverged or not self.losses else sum(self.losses.values()) / len(self.losses)


def trials(study: Study) -> list[Trial]:
    """Returns every value tried for every arm, values rising; none where the study chose nothing."""
    if study.selection is None:
        return []
    found = []
    for arm in study.arms:
        for value, tried in study.selection.of(arm.name):
            losses = {run.seed: from_eval("loss", "loss")(run) for run in tried.done}
            kept = {seed: loss for seed, loss in losses.items() if math.isfinite(loss)}
            diverged = sum(run.status == "diverged" for run in tried.runs)
            found.append(Trial(arm.name, value, kept, diverged))
    return found


def chosen(study: Study, arm: str) -> float:
    """Returns the value that was chosen for an arm, as sweep.json has it; nan for none (yet)."""
    return number(study.selection.choices.get(arm, {}).get("value")) if study.selection else math.nan


def preface(study: Study) -> str:
    """Returns how the study chose its hyperparameter, in words; empty where it chose none."""
    if study.selection is None:
        return ""
    field, seeds = study.selection.field, listed([str(seed) for seed in study.selection.seeds])
    values = [(arm.name, chosen(study, arm.name)) for arm in study.arms]
    told = listed([f"{name} {value:g}" for name, value in values if math.isfinite(value)]) or "none yet"
    noun = "seed" if len(study.selection.seeds) == 1 else "seeds"
    return f"{field} was chosen for each arm on {noun} {seeds} ({told}) and is reported on other seeds."


def warnings(study: Study, arm: Arm) -> list[tuple[str, str]]:
    """Returns (in short, in words) what is doubtful about an arm's choice: an edge of the grid, or runs without it."""
    if study.selection is None:
        return []
    field, value = study.selection.field, chosen(study, arm.name)
    found = []
    edge = text(study.selection.choices.get(arm.name, {}).get("edge"))
    if edge:
        words = f"the best {field} of {arm.name}, {value:g}, is the {edge} tried: a better one may lie beyond"
        found.append(("edge of grid", words))
    trained = {number(dig(run.config, *field.split("."))) for run in arm.done}
    other = sorted(one for one in trained if math.isfinite(one) and not math.isclose(one, value))
    if other and math.isfinite(value):
        used = ", ".join(f"{one:g}" for one in other)
        found.append(("not as chosen", f"runs of {arm.name} trained with {field} {used}, not the {value:g} chosen"))
    return found
