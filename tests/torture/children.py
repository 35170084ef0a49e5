"""What the tortured processes do: the very functions that the commands call; some with a fault put in."""

import datetime
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import fields
from configs.errors import UserError
from data import workers
from eval import run as evaluations
from report import build as reports
from training.loop import trainer
from training.run_directory import record
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat
from training.step import train_step

EXIT = {"done": 0, "diverged": 3, "preempted": 4}


def train(
    config: dict[str, Any],
    workdir: str,
    digest: str = "",
    lose_device_at: int = 0,
    clock: list[list[float]] | None = None,
    patience: float = 0.0,
) -> int:
    """Trains as train.py does, with its exit codes.

    Args:
        config: every field.
        workdir: the run directory.
        digest: a file that takes the hash of the final parameters.
        lose_device_at: the step that raises as a lost device does; 0: none.
        clock: [seconds after the start, seconds by which the clock is then wrong] pairs.
        patience: of `data.workers`, seconds; 0: as it is.
    """
    if lose_device_at:
        _lose_device(lose_device_at)
    if clock:
        _set_clock(clock)
    workers.PATIENCE = patience or workers.PATIENCE
    try:
        result = trainer.train(fields.from_dict(config), workdir)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{result['status']}: {result['error'] or ''}")
    if result["status"] == "done" and digest:
        Path(digest).write_text(parameters(workdir))
    return EXIT[result["status"]]


def parameters(workdir: str) -> str:
    """Returns the hash of a run's newest parameters."""
    total = hashlib.sha256()
    for name, values in sorted(flat(runs.load(workdir).params).items()):
        total.update(name.encode() + np.asarray(values).tobytes())
    return total.hexdigest()


def _lose_device(at: int) -> None:
    original, calls = train_step.compiled, [0]

    def compiled(*arguments: Any) -> Any:
        program, seconds = original(*arguments)

        def lost(*values: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                raise jax.errors.JaxRuntimeError("UNAVAILABLE: the device is lost (put in by the torture)")
            return program(*values)

        return lost, seconds

    vars(train_step)["compiled"] = compiled


def _set_clock(jumps: list[list[float]]) -> None:
    real, begun = time.time, time.monotonic()

    def wrong() -> float:
        passed = time.monotonic() - begun
        return real() + sum(by for after, by in jumps if passed >= after)

    time.time = wrong
    message = lambda: datetime.datetime.fromtimestamp(wrong(), datetime.UTC).isoformat(timespec="seconds")  # noqa: E731
    record.now = message


def evaluate(workdir: str, names: list[str]) -> int:
    """Evaluates as eval.run does."""
    evaluations.evaluate(workdir, names)
    return 0


def report(directory: str) -> int:
    """Builds a report."""
    reports.build(directory)
    return 0
