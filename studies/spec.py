"""What a study declares: published tables, orderings with the cells they compare, and charts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from configs.errors import UserError

TRAINED = "trained"  # a run's own RoPE scaling

LOSS, LOSS_AT, SLIDING, ACCURACY = "loss", "loss_at", "sliding", "accuracy"  # measures that are compared
LOCAL = "local"  # accuracy of the local baseline (docs/retrieval.md)
SHARES = (ACCURACY, LOCAL)
MEASURES = {
    LOSS: "validation loss, nats/token",
    LOSS_AT: "loss in rows of that length, nats/token",
    SLIDING: "loss in sliding windows of that length, nats/token",
    ACCURACY: "share of answers right",
    LOCAL: "share right of the local baseline",
}


@dataclass(frozen=True)
class Cell:
    """One measured condition: what an arm's runs gave. `length` in tokens; 0: at the training length."""

    arm: str
    measure: str = LOSS
    length: int = 0
    scaling: str = TRAINED

    @property
    def condition(self) -> tuple[str, int]:
        """What is the same in cells whose deviations may be pooled."""
        return self.measure, self.length


@dataclass(frozen=True)
class Ordering:
    """One published ordering: `cell` minus `against` has the sign `sign`; 0: they differ by less than `care`.

    Attributes:
        claim: in words, as a sentence's beginning.
        source: who published it.
        published: the figures that it rests on.
        cell, against: what is compared here, paired by seed.
        sign: of the published difference: 1, -1 or 0.
        care: nats (of shares: of 1) below which a difference does not matter; only of sign 0.
        least: of shares with sign 0: below it neither cell says anything of the other, as where both are at chance.
        control: a further comparison that guards another's meaning, and no published ordering.
    """

    claim: str
    source: str
    published: str
    cell: Cell
    against: Cell
    sign: int
    care: float = 0.01
    least: float = 0.0
    control: bool = False


@dataclass(frozen=True)
class Chart:
    """Means of cells with their intervals over seeds: `lines` is {name: {x: cell}}."""

    key: str
    title: str
    caption: str
    x: str
    lines: Mapping[str, Mapping[float, Cell]]
    log_x: bool = True


@dataclass(frozen=True)
class Published:
    """A row of the published table: transcribed, not measured here."""

    source: str
    setting: str
    figures: str
    claim: str


@dataclass(frozen=True)
class Study:
    """A study's declaration.

    Attributes:
        name: its folder.
        title, question: for its page.
        sweeps: its sweep files in the order in which they run.
        published: the table it is held against.
        orderings: the family that Holm's correction is made over.
        charts: figures beside the forest plot.
        remarks: sentences on what the verdicts do and do not say, for its page.
        checks: {beginning of a claim: what was done to be sure of it}; every reversed ordering must have one.
        not_run: {what the question asks for and the study has not run: hours of one core that it needs}.
        hours: CPU hours of one run of all of it, measured or reckoned, and on what.
        columns: numbers a run that the page's table of arms shows: {measure: heading}.
    """

    name: str
    title: str
    question: str
    sweeps: tuple[str, ...]
    published: tuple[Published, ...]
    orderings: tuple[Ordering, ...]
    charts: tuple[Chart, ...] = ()
    remarks: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    not_run: Mapping[str, float] = field(default_factory=dict)
    hours: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def check_of(self, ordering: Ordering) -> str:
        """Returns what was done to be sure of an ordering that came out reversed.

        Raises:
            UserError: the study does not say it.
        """
        for beginning, check in self.checks.items():
            if ordering.claim.startswith(beginning):
                return check
        raise UserError(f"studies/{self.name}/study.py: checks: nothing begins {ordering.claim!r}, which is reversed")
