"""The training loop: trains one config into one run directory, and continues an existing one exactly."""

import functools
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import validate
from configs.errors import UserError
from configs.rules import growth
from training.loop import after_step, ending, prepare, start
from training.loop.ending import Preempted as Preempted
from training.loop.state import Run, Stretch
from training.loop.watch import Diverged
from training.run_directory.run_lock import exclusive, stop_signals
from training.runtime import distributed, failures, partners
from training.runtime.compilation import enable_cache
from training.step import mesh as meshes
from training.step import optimizer, train_step
from training.step.rng import step_keys


def train(config: ConfigDict, workdir: str | Path, *, quiet: bool = False) -> dict[str, Any]:
    """Trains a config into a run directory, or continues an existing one.

    Args:
        config: unresolved or resolved.
        workdir: created if absent. A finished run is skipped.
        quiet: no progress output.

    Returns:
        run.json's content; its `status` is done, diverged or preempted.

    Raises:
        UserError: the config is refused, the directory has another run, or another process is training there; the disk
            is full or not writable, the directory vanished, or a device failed.
    """
    config = validate.resolve(config)
    workdir = Path(workdir).absolute()
    enable_cache()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        mesh = meshes.mesh_of(config)
        with ExitStack() as held:
            # Of several processes the first one locks the directory for all.
            distributed.agreed(lambda: held.enter_context(exclusive(workdir)) if distributed.main() else None)
            ready = prepare.ready(config, workdir, quiet=quiet, mesh=mesh)
            return finish(ready) if isinstance(ready, Run) else ready
    except OSError as error:
        raise UserError(failures.explained(error, workdir) or str(error)) from error


def finish(run: Run) -> dict[str, Any]:
    """Trains a prepared run to its end, and returns run.json's content, which says how it ended."""
    partners.record = functools.partial(ending.record_lost, run)
    try:
        start.begin(run)
        with stop_signals() as caught, run.console:
            loop(run, caught)
    except (Diverged, Preempted) as error:
        ending.end_by(run, error)
    except BaseException as error:
        reason = ending.end_by(run, error)
        if reason and not isinstance(error, UserError):
            raise UserError(reason) from error
        raise
    else:
        ending.end(run, "done", None)
    return run.record.values


def loop(run: Run, caught: list[int]) -> None:
    """Steps until the budget is spent; everything that is not a step happens at multiples of its interval."""
    plan, state, keys = run.plan, run.state, step_keys(run.plan.config)
    run.stretch = Stretch()
    stopping = distributed.Stopping()
    while not plan.budget.finished(state.spent):
        if number := stopping(caught):
            ending.stop(run, number)
        began = time.perf_counter()
        batch = meshes.global_batch(plan.rules, next(run.stream), plan.share)
        program = _program(run, batch)
        if not _busy(run):
            began = time.perf_counter()  # the device waited too; else it went on with earlier steps
        rows, length = batch["tokens"].shape
        update = state.spent.steps + 1
        rate = plan.rate(update, plan.budget.progress(state.spent))
        state.params, state.opt_state, loss, norm = program(
            state.params, state.opt_state, batch, optimizer.rates(plan.config.optimizer, rate), keys(update)
        )
        if plan.clocked:
            loss.block_until_ready()
        after_step.count(run, loss, norm, (rows, length), after_step.since(plan, began))
        after_step.follow_up(run, after_step.due(run), rate, norm, length)


def _busy(run: Run) -> bool:
    """Tells whether the device still works on the step before."""
    last = run.state.pending[-1] if run.state.pending else 0.0  # a number once it was read
    return not isinstance(last, float) and not last.is_ready()


def _program(run: Run, batch: Any) -> Any:
    """Returns the compiled step for a batch, at the window's stage."""
    plan = run.plan
    stage = growth.stage_of(plan.config, run.state.spent.steps)
    program, seconds = train_step.compiled(plan.by_window[stage], batch, plan.mesh, plan.program_keys[stage])
    if seconds:
        run.state.compile_seconds += seconds
        run.stretch = Stretch()
    return program
