"""The budget of a run: steps, tokens, FLOPs or seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StageLike(Protocol):
    """The part of a curriculum stage that a budget needs; `steps` is None for the last one, which takes the rest."""

    @property
    def steps(self) -> int | None:
        """Its number of steps."""

    @property
    def length(self) -> int:
        """Tokens per row."""

    @property
    def batch_size(self) -> int:
        """Rows per step."""


@dataclass(frozen=True)
class Spent:
    """A run's progress: steps, tokens (including padding), FLOPs, and seconds of training only."""

    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0


class Budget:
    """A budget of `amount` of `kind`; training ends with the first step that reaches it.

    Attributes:
        total_steps: the number of steps, or None for seconds.
    """

    def __init__(self, kind: str, amount: float, stages: Sequence[StageLike], flops_per_token: Sequence[float]) -> None:
        """Takes the stages in order and each one's FLOPs per token."""
        self.kind = kind
        self.amount = amount
        self.total_steps = None if kind == "seconds" else self._steps(stages, flops_per_token)

    def _steps(self, stages: Sequence[StageLike], flops_per_token: Sequence[float]) -> int:
        left, steps = self.amount, 0
        for stage, flops in zip(stages, flops_per_token, strict=True):
            tokens = stage.length * stage.batch_size
            cost = {"steps": 1.0, "tokens": float(tokens), "flops": tokens * flops}[self.kind]
            # A budget in FLOPs is rarely a whole number of steps; rounding errors must not add one.
            needed = max(0, math.ceil(left / cost - 1e-9))
            if stage.steps is None or needed <= stage.steps:
                return steps + needed
            steps += stage.steps
            left -= stage.steps * cost
        return steps

    def progress(self, spent: Spent) -> float:
        """Returns the share spent, 0 .. 1 and slightly more."""
        if self.total_steps is not None:
            return spent.steps / self.total_steps
        return spent.seconds / self.amount

    def finished(self, spent: Spent) -> bool:
        """Returns whether training ends here."""
        if self.total_steps is not None:
            return spent.steps >= self.total_steps
        return spent.seconds >= self.amount
