"""An expanded sweep: its studies, arms and runs, and how a hyperparameter is chosen for each arm."""

import math
from dataclasses import dataclass, field
from typing import Any

from ml_collections import ConfigDict

from report.statistics.sequential import Plan
from sweeps.spec.match import Match


@dataclass(frozen=True)
class Selection:
    """How a study chooses `field` for each arm: among `values`, on `seeds`.

    `strip` is the suffix of a branch's name, without which it is the arm whose choice applies.
    """

    field: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    strip: str = ""

    def arm(self, name: str, value: float) -> str:
        """Returns the arm whose runs try a value for another arm."""
        return f"{name.removesuffix(self.strip)}@{self.field.rsplit('.', 1)[-1]}={value}"

    def keys(self, name: str) -> list[str]:
        """Returns the runs that an arm's choice depends on."""
        return [f"{self.arm(name, value)}/seed{seed}" for value in self.values for seed in self.seeds]


@dataclass(frozen=True)
class Choice:
    """The choice for an arm. `value` is None if every value diverged.

    Attributes:
        losses: for each value the mean loss over the selection seeds, nats; infinite if one diverged.
    """

    field: str
    value: float | None
    losses: dict[float, float]

    @property
    def edge(self) -> str:
        """ "lowest" or "highest" if the best value is the grid's last on that side, else ""."""
        if self.value is None or len(self.losses) < 2:
            return ""
        return {min(self.losses): "lowest", max(self.losses): "highest"}.get(self.value, "")

    def described(self) -> dict[str, Any]:
        """Returns its entry in sweep.json; null for a loss that is not finite."""
        losses = [[value, loss if math.isfinite(loss) else None] for value, loss in self.losses.items()]
        return {"value": self.value, "losses": losses, "edge": self.edge}


@dataclass(frozen=True)
class Ladder:
    """`values` increase; the last is the study's own rung."""

    by: str
    values: tuple[float, ...]
    branches: bool = False
    tokens_per_parameter: float | None = None

    def suffix(self, value: float) -> str:
        """Returns the suffix of a rung's arm names: `@amount=50`; empty at the highest."""
        return "" if value == self.values[-1] else f"@{self.by.rsplit('.', 1)[-1]}={value:g}"

    def label(self, value: float) -> str:
        """Returns a rung's label: `amount 50`."""
        return f"{self.by.rsplit('.', 1)[-1]} {value:g}"

    def described(self) -> dict[str, Any]:
        """Returns its entry in sweep.json."""
        return {**vars(self), "values": list(self.values)}


@dataclass(frozen=True)
class Arm:
    """One setting of a study: `overrides` are the differences from the base config, `config` is resolved.

    `matches` says how close it came to the arms it is matched with, `rung_of` which arm it is on a ladder.
    """

    study: str
    name: str
    overrides: dict[str, Any]
    varied: dict[str, Any]
    config: ConfigDict
    matches: tuple[Match, ...] = ()
    rung_of: str = ""


@dataclass(frozen=True)
class Run:
    """One arm with one seed: one run directory.

    `base` is the arm's config, the same object for all of its seeds; `select` says how a field that it leaves open is
    chosen.
    """

    study: str
    arm: str
    seed: int
    base: ConfigDict
    evals: tuple[str, ...]
    select: Selection | None = None

    @property
    def config(self) -> ConfigDict:
        """The run's own config, built at each access: the arm's with this seed, labelled with the arm's name."""
        config = self.base.copy_and_resolve_references()
        config.seed = self.seed
        config.name = self.arm
        return config

    @property
    def key(self) -> str:
        """The run's folder below `runs/`, and its name in messages."""
        return f"{self.arm}/seed{self.seed}"


@dataclass(frozen=True)
class Study:
    """Arms that are compared with each other.

    `solved` defines when a seed has solved its task (report/statistics/solving.py). `select` says how a hyperparameter
    is chosen for each arm, `choices` what has been chosen. If `selects_for` names another study, this one has the runs
    that try the values for it. `plan` says how seeds are added (sweeps/spec/looks.py), `care` which difference of
    losses matters (nats), `looked` at how many seeds a list without a plan was looked at before it was extended. With a
    `ladder` the study is its highest rung; a lower one is a separate study, whose `rung_of` names that one. `columns`
    are those of its tables (configs/columns.py), `highlight` the arms in colour in figures with many arms.
    """

    name: str
    title: str
    question: str
    base: str
    baseline: str | None
    evals: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    solved: dict[str, float] = field(default_factory=dict)
    select: Selection | None = None
    selects_for: str = ""
    choices: dict[str, Choice] = field(default_factory=dict)
    target: float | None = None
    plan: Plan | None = None
    care: float | None = None
    looked: tuple[int, ...] = ()
    ladder: Ladder | None = None
    rung: float | None = None
    rung_of: str = ""
    columns: tuple[str, ...] = ()
    highlight: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """An expanded sweep file."""

    name: str
    title: str
    file: str
    text: str
    overrides: dict[str, Any]
    studies: tuple[Study, ...]

    def runs(self) -> list[Run]:
        """Returns every run, with the seeds of an arm adjacent, so that its compiled programs serve them all."""
        return [
            Run(study.name, arm.name, seed, arm.config, study.evals, study.select)
            for study in self.studies
            for arm in study.arms
            for seed in study.seeds
        ]
