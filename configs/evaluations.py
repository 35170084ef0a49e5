"""The evaluations: what each is called, what runs it, and what the rest must know of it. An evaluation is a line here.

Names stand here and not in `eval`, for sweeps and reports read them without JAX. Which settings shape an evaluation's
numbers is declared beside each setting, `compare=` in `configs/base.py`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """A number of an evaluation's JSON file that is a row of the results frame for every run.

    Attributes:
        name, unit: as the frame has them.
        keys: where it lies in the file.
        interval: where its interval lies; empty: it has none.
    """

    name: str
    unit: str
    keys: tuple[str, ...]
    interval: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """One question that a run directory is asked; its answer is DIR/eval/NAME.json.

    Attributes:
        name: of --evals and of the file.
        module: whose `evaluate(run, progress)` returns what the file holds beside the fields that all share.
        default: whether it is done where nothing is asked for by name.
        timed: whether a neighbour's work would disturb it, so that it is done when the machine has nothing else to do.
        measures: rows of the results frame; those by length, depth or position are the report's own.
    """

    name: str
    module: str
    default: bool = True
    timed: bool = False
    measures: tuple[Measure, ...] = ()

    def load(self) -> Callable[[Any, Any], dict[str, Any]]:
        """Returns the function; this imports JAX."""
        return importlib.import_module(self.module).evaluate


def _speed(program: str) -> Measure:
    keys = (program, "tokens_per_second"), (program, "spread")
    return Measure(f"{program}_tokens_per_second", "tokens/s", *keys)


EVALUATIONS: dict[str, Evaluation] = {
    evaluation.name: evaluation
    for evaluation in (
        Evaluation(
            "loss",
            "eval.quality.loss",
            measures=(
                Measure("loss", "nats/token", ("loss",), ("loss_interval",)),
                Measure("bits_per_byte", "bits/byte", ("bits_per_byte",), ("bits_per_byte_interval",)),
            ),
        ),
        Evaluation(
            "retrieval",
            "eval.quality.retrieval",
            measures=(Measure("retrieval", "share", ("accuracy",)),),
        ),
        Evaluation(
            "throughput",
            "eval.cost.throughput",
            timed=True,
            measures=(_speed("train"), _speed("prefill"), _speed("decode")),
        ),
        Evaluation(
            "memory",
            "eval.cost.memory",
            measures=(
                Measure("train_step_peak", "bytes", ("compiled", "train_step", "peak")),
                Measure("parameters_memory", "bytes", ("formula", "parameters")),
                Measure("optimizer_memory", "bytes", ("formula", "optimizer")),
            ),
        ),
        # It wants a machine with nothing else to do.
        Evaluation("profile", "eval.cost.profile", default=False, timed=True),
        # It takes each head away in turn.
        Evaluation("heads", "eval.heads.per_head", default=False),
        # It is about this device and the config, not the run.
        Evaluation("equivalence", "eval.equivalence", default=False),
    )
}
