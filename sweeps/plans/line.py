"""A line of a plan: the cost of one arm."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it starts JAX, which --help should not
    from sweeps.plans.programs import Program


@dataclass(frozen=True)
class Line:
    """The cost of one arm. Parameters, FLOPs and KV bytes are exact counts.

    Attributes:
        tokens, flops: of one run's training, if the budget determines them; of a branch, only its decay.
        runs: number of seeds.
        programs: the compiler's figures, by program (`PROGRAMS` of sweeps.plan).
        hours_at_mfu: of one run's training at a stated MFU, {"mfu", "hours"}: an estimate. None if the chip's peak is
            not published or the budget is in seconds.
        match: how close the arm came to what the sweep file matches it to, as in sweep.json.
    """

    study: str
    arm: str
    runs: int
    parameters: dict[str, int]
    flops_per_token: dict[str, Any]
    kv_bytes_per_token: int
    tokens: int | None
    flops: float | None
    programs: "dict[str, Program]"
    compile_seconds: float
    match: tuple[dict[str, Any], ...] = ()
    hours_at_mfu: dict[str, float] | None = None

    @property
    def good(self) -> bool:
        """Whether all programs compile and fit."""
        return all(program.fits and not program.error for program in self.programs.values())

    def as_json(self) -> dict[str, Any]:
        """Returns the line for --json; `memory` and `error` are those of the first program."""
        first = next(iter(self.programs.values()))
        programs = {name: program.as_json() for name, program in self.programs.items()}
        return {**vars(self), "memory": first.memory, "error": first.error, "programs": programs}
