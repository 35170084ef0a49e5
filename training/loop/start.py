"""The state that a run begins with: restored, taken from another run, or new; and what it writes to while it trains."""

import jax

from models import initialise
from training.devices import chips
from training.loop import trackers, validation
from training.loop.metrics import MetricsLog, NoLog
from training.loop.state import Run
from training.loop.watch import Watch
from training.run_directory import branches, inherit, integrity
from training.run_directory import record as records
from training.run_directory.checkpoint import Checkpoints, identity
from training.runtime import distributed
from training.step import mesh as meshes
from training.step import train_step


def begin(run: Run) -> None:
    """Makes or restores a run's state, and opens its checkpoints, metrics and validation batches."""
    plan = run.plan
    shapes = train_step.abstract(plan.config, plan.mesh)
    run.stream.say = lambda text: tell(run, text)
    distributed.agreed(lambda: integrity.set_damaged_aside(plan.workdir, run.stream.say) if plan.main else None)
    run.checkpoints = Checkpoints(plan.workdir, plan.config.checkpoint.keep, always=run.kept)
    run.closing.append(lambda status: run.checkpoints.close())
    run.watch = Watch(plan.config)
    _set_state(run, shapes)
    ready = validation.batches(plan.config, plan.tokenizer, plan.corpus)
    run.validate = validation.validator(plan.config, ready, plan.mesh)
    run.watch.prepare(ready[0], plan.mesh)
    _open_log(run)
    run.peak = (chips.peak(jax.devices()[0].device_kind) or 0.0) * (plan.mesh.size if plan.mesh else 1)


def _set_state(run: Run, shapes: train_step.Abstract) -> None:
    plan, config = run.plan, run.plan.config
    if done := run.checkpoints.steps():
        run.checkpoints.refuse_others(done[-1], shapes.params, shapes.opt_state, identity(config))
        run.restore(*run.checkpoints.restore(done[-1], shapes.params, shapes.opt_state))
    elif run.branch_at is not None:
        _branch(run, run.branch_at, shapes)
    else:
        run.state.params = _parameters(run, shapes)
        run.state.opt_state = train_step.initial_opt_state(config, run.state.params, plan.mesh)


def _parameters(run: Run, shapes: train_step.Abstract) -> train_step.Params:
    """Returns the parameters of `init_from`, or new ones."""
    plan, config = run.plan, run.plan.config
    if not config.init_from:
        with meshes.on_host(plan.mesh):
            params = initialise(config.model, config.seed)[1]
        return meshes.spread(plan.rules, params)
    for line in inherit.changes(config):
        run.console.say(line)
    run.record.update(identity=inherit.identity(config))
    return inherit.parameters(config, shapes)


def _branch(run: Run, at: int, shapes: train_step.Abstract) -> None:
    """Takes the state of `init_from` at a step; its clocks and metrics continue as if this run had begun it."""
    run.restore(*branches.restore(run.plan.config, at, shapes, run.plan.workdir))
    state = run.state
    spent = {"total": state.spent.seconds + state.compile_seconds + state.eval_seconds}
    run.before = {**run.before, "wall_time": spent}
    run.record.update(branched={"from": run.plan.config.init_from, "step": at, "seconds": state.spent.seconds})


def _open_log(run: Run) -> None:
    plan, step = run.plan, run.state.spent.steps
    if plan.main:
        opened = trackers.opened(plan.config, plan.workdir, step)
        run.log = MetricsLog(plan.workdir, step, [trackers.Guarded(tracker, run.console.say) for tracker in opened])
    else:
        run.log = NoLog()
    run.closing.append(run.log.close)
    if plan.main and run.log.lines < run.state.lines:
        lines = f"{run.log.lines} of the {run.state.lines} lines up to step {step}"
        tell(run, f"metrics.jsonl has {lines}; the others are lost")


def tell(run: Run, text: str) -> None:
    """Says a line and keeps it in run.json: what happened to the run from outside."""
    run.console.say(text)
    run.record.update(incidents=[*run.record.values["incidents"], f"{records.now()} {text}"])
