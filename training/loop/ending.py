"""How a run ends: done, stopped, diverged or failed; files are closed and run.json says so."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from configs.errors import UserError
from training.loop import after_step
from training.loop.state import Run
from training.loop.watch import Diverged
from training.runtime import failures, partners


class Preempted(Exception):
    """The run received a stop signal and saved its state. `signal` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def stop(run: Run, number: int) -> NoReturn:
    """Saves a run that received a stop signal.

    Raises:
        Preempted: always.
    """
    after_step.flush(run)
    after_step.save(run, run.state.val_loss)
    raise Preempted(number)


def end_by(run: Run, error: BaseException) -> str | None:
    """Records that an exception ended the run: diverged, preempted, or failed.

    Returns:
        The reason in a line, None where nothing better is known than the error itself.
    """
    if isinstance(error, Diverged | Preempted):
        end(run, "diverged" if isinstance(error, Diverged) else "preempted", str(error))
        return str(error)
    reason = run.place.failure(error)
    message = reason or failures.named(error)
    end(run, "failed", message)
    run.record.values |= {"status": "failed", "error": message}  # nothing is written where the directory has gone
    return reason


def end(run: Run, status: str, error: str | None) -> None:
    """Waits for the checkpoint that is being written, closes, and records how the run ended.

    Of a run that failed already no second failure is reported; but a run is not done whose last checkpoint is not.

    Raises:
        UserError: it failed while it ended; run.json says so.
    """
    with suppress(OSError):  # shared memory that is gone already
        run.stream.close()  # else batches that nobody took stay in shared memory
    for close in run.closing:
        with _failing_again(run, status):
            close(status)
    run.place.clear()
    with _failing_again(run, status):
        run.place.check()
        spent = run.state.spent
        run.record.update(
            status=status,
            error=error,
            wall_time=run.wall_time(),
            step=spent.steps,
            tokens=spent.tokens,
            flops=spent.flops,
        )
    partners.record = None


@contextmanager
def _failing_again(run: Run, status: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if status == "failed":
            return
        end_by(run, error)
        raise UserError(run.record.values["error"]) from error


def record_lost(run: Run, message: str) -> None:
    """Records that another process of the run died while this one waits; not where the end is recorded already."""
    if run.record.values["status"] == "running" and not run.place.gone():
        run.record.update(status="failed", error=message)
