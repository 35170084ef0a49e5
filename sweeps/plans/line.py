"""A line of a plan: what one arm costs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it starts JAX, which --help should not
    from sweeps.plans.programs import Program


@dataclass(frozen=True)
class Line:
    """What one arm costs. Parameters, FLOPs and KV bytes are exact counts.

    Attributes:
        tokens, flops: of one run's training, where the budget tells them; of a branch, of its decay alone.
        runs: how many seeds.
        programs: what the compiler says, by program (`PROGRAMS` of sweeps.plan).
        hours_at_mfu: of one run's training at a stated MFU, {"mfu", "hours"}: an estimate. None where the chip's peak
            is not published or the budget is one of seconds.
        match: how near the arm came to what the sweep file has it match, as sweep.json holds it.
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
        """Whether all of it compiles and fits."""
        return all(program.fits and not program.error for program in self.programs.values())

    def as_json(self) -> dict[str, Any]:
        """Returns it as --json writes it; `memory` and `error` are those of the first program."""
        first = next(iter(self.programs.values()))
        programs = {name: program.as_json() for name, program in self.programs.items()}
        return {**vars(self), "memory": first.memory, "error": first.error, "programs": programs}
