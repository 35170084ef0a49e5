"""What happens after a step: it is counted; metrics, validation and checkpoints follow at their intervals."""

import dataclasses
import time
from typing import Any, NamedTuple

import numpy as np

from configs.rules import growth
from training.loop.state import Plan, Run, Stretch
from training.loop.watch import Diverged
from training.runtime import distributed
from training.step.budget import Spent


def count(run: Run, loss: Any, norm: Any, shape: tuple[int, int], seconds: float) -> None:
    """Takes what a step of [rows, length] returned; loss and norm may still be on the device."""
    run.state.pending.append(loss)
    run.watch.add(norm)
    spend(run, shape[0] * shape[1], seconds)


def spend(run: Run, tokens: int, seconds: float) -> None:
    """Adds a step to what the run has used."""
    spent = run.state.spent
    stage = growth.stage_of(run.plan.config, spent.steps)
    flops = tokens * run.plan.flops_per_token[stage][run.stream.stage]
    run.state.spent = Spent(spent.steps + 1, spent.tokens + tokens, spent.flops + flops, spent.seconds + seconds)
    run.stretch.tokens += tokens


class Due(NamedTuple):
    """What the step just taken is followed by."""

    metrics: bool
    evaluation: bool
    checkpoint: bool
    last: bool


def due(run: Run) -> Due:
    """Returns what follows: each thing at multiples of its interval, and all at the end."""
    config, step = run.plan.config, run.state.spent.steps
    last = run.plan.budget.finished(run.state.spent)

    def at(every: int) -> bool:
        return last or (every > 0 and step % every == 0)

    evaluation = at(config.eval.every_steps)
    checkpoint = at(config.checkpoint.every_steps) or step in run.kept
    return Due(at(config.log.every_steps) or evaluation, evaluation, checkpoint, last)


def follow_up(run: Run, now: Due, rate: float, norm: Any, length: int) -> None:
    """Does what is due, with the parameters and optimizer state in `run.state`.

    Args:
        run: after `count`.
        now: see `due`.
        rate: the step's learning rate.
        norm: the step's gradient norm.
        length: tokens a row.

    Raises:
        Diverged: a loss is not finite, or what `config.watch` looks for.
    """
    if not any(now):
        return
    flush(run)
    if now.evaluation:
        evaluate(run)
    if now.metrics:
        write_metrics(run, now, rate, float(norm), length)
    state = run.state
    if now.checkpoint:
        save(run, state.val_loss if now.evaluation else None)
    run.watch.after(state.spent.steps, now.evaluation, state.params, state.opt_state, run.meta)


def flush(run: Run) -> None:
    """Reads the losses that are still on the device; the first that is not finite ends the run.

    Raises:
        Diverged: naming the step.
    """
    state, began = run.state, time.perf_counter()
    values = [float(loss) for loss in state.pending]
    state.spent = dataclasses.replace(state.spent, seconds=state.spent.seconds + since(run.plan, began))
    run.watch.check(state.spent.steps, values, run.checkpoints)
    first = state.spent.steps - len(values) + 1
    for offset, value in enumerate(values):
        if not np.isfinite(value):
            raise Diverged(f"the training loss became {value} at step {first + offset}")
    state.pending = values


def since(plan: Plan, began: float) -> float:
    """Returns the seconds since; where they count, the same in every process."""
    seconds = time.perf_counter() - began
    return distributed.shared_seconds(seconds) if plan.clocked else seconds


def evaluate(run: Run) -> None:
    """Measures the validation loss, and what `config.watch` looks at in the heads."""
    state, began = run.state, time.perf_counter()
    state.val_loss = run.validate(state.params)
    run.watch.look(state.params)
    if np.isfinite(state.val_loss):
        state.best_val_loss = min(state.val_loss, np.inf if state.best_val_loss is None else state.best_val_loss)
    state.eval_seconds += time.perf_counter() - began
    run.stretch.eval_seconds = time.perf_counter() - began


def write_metrics(run: Run, now: Due, rate: float, norm: float, length: int) -> None:
    """Writes a line of metrics.jsonl, shows it, and keeps run.json up to date."""
    plan, state, spent = run.plan, run.state, run.state.spent
    speed = run.stretch.speed()
    line: dict[str, Any] = {
        "step": spent.steps,
        "tokens": spent.tokens,
        "flops": spent.flops,
        "stage": run.stream.stage,
        "length": length,
        "train_loss": float(np.mean(state.pending)),
        "learning_rate": rate,
        "grad_norm": norm,
        "tokens_per_second": speed,
    }
    window_stage = growth.stage_of(plan.config, spent.steps - 1)
    if len(plan.by_window) > 1:
        line["window"] = growth.window_of(plan.config, window_stage)
    if run.peak:
        line["mfu"] = speed * plan.flops_per_token[window_stage][run.stream.stage] / run.peak
    if now.evaluation:
        line |= {"val_loss": state.val_loss, **run.watch.metrics}
    run.log.write(line)
    state.pending = []
    run.place.check()
    run.console.show(line, plan.budget.progress(spent), now.last)
    run.record.progress(
        step=spent.steps,
        tokens=spent.tokens,
        flops=spent.flops,
        train_loss=line["train_loss"],
        val_loss=state.val_loss,
        best_val_loss=state.best_val_loss,
        wall_time=run.wall_time(),
    )
    run.stretch = Stretch()


def save(run: Run, val_loss: float | None) -> None:
    """Saves a checkpoint in the background; `val_loss` is that of these parameters, None where they were not evaluated.

    Raises:
        Vanished: the run directory is gone.
    """
    run.log.sync()
    run.place.check()
    run.checkpoints.save(run.state.spent.steps, run.state.params, run.state.opt_state, run.meta(), val_loss)
