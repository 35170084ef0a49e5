"""Branches: runs that continue another's whole state with their own decay, so that one run serves several budgets.

Before its decay, a schedule of warm-up, stable phase and decay (wsd, 2405.18392) does not depend on the budget. A run
with a smaller budget is therefore the longer run up to the step where its own decay starts, and can take that run's
checkpoint there: parameters, optimizer state, step, data position, metrics. The result is, to the bit, that of training
it alone.

`checkpoint.branches` of the longer run lists the smaller budgets, for each of which it keeps a checkpoint; the smaller
run
has `init_from` and `init_state = "branch"`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import fields
from configs.errors import ConfigError
from configs.rules import branches as rules
from training.run_directory import run as runs
from training.run_directory.checkpoint import Checkpoints, saved
from training.run_directory.files import read_json, read_lines, write_text
from training.step import schedule, train_step
from training.step.budget import Budget

# Fields in which a branch may differ from its source: those that do not affect training, and those of its own decay.
OWN = tuple(
    "name tracker mesh. log. watch. eval. checkpoint. data.cache_dir data.workers data.prefetch init_from init_state "
    "budget.amount optimizer.decay_share optimizer.final_share".split()
)


def shared(one: tuple[ConfigDict, Budget], other: tuple[ConfigDict, Budget]) -> int:
    """Returns the number of first updates with equal learning rates in two runs, given (optimizer, budget)."""
    (own, budget), (theirs, longer) = one, other
    if budget.total_steps is None or longer.total_steps is None:
        return 0
    steps = np.arange(1, min(budget.total_steps, longer.total_steps) + 1)
    rates = [
        np.broadcast_to(np.asarray(schedule.shape(o, o.warmup_steps, b.total_steps)(steps), np.float32), steps.shape)
        for o, b in ((own, budget), (theirs, longer))
        if b.total_steps is not None
    ]
    differ = np.flatnonzero(rates[0] != rates[1])
    return int(differ[0]) if differ.size else len(steps)


def check_longer(config: ConfigDict, shorter: Budget, longer: Budget, step: int) -> None:
    """Checks that a run's updates up to a step are those that it would have made with a larger budget.

    Args:
        config: the run's.
        shorter, longer: its budget so far, and the larger one.
        step: of its newest checkpoint.

    Raises:
        ConfigError: the learning rates differ.
    """
    seconds = shorter.total_steps is None
    if (seconds and config.optimizer.schedule == "constant") or (
        not seconds and step <= shared((config.optimizer, shorter), (config.optimizer, longer))
    ):
        return
    before = {**fields.flatten(config), "budget.amount": shorter.amount}
    share = 1.0 if seconds else step / (shorter.total_steps or 1)
    raise ConfigError(
        rules.not_longer(before, share)
        or f"budget.amount = {shorter.amount:g} cannot be raised: at step {step} the learning rates already differ"
    )


def kept_steps(config: ConfigDict, budget: Budget, smaller: Any) -> dict[int, float]:
    """Returns {step: budget} of the checkpoints that a run keeps for its `checkpoint.branches`.

    Args:
        config: the run's.
        budget: the run's.
        smaller: returns the `Budget` of an amount.

    Raises:
        ConfigError: a branch would leave at step 0.
    """
    results = {}
    for amount in config.checkpoint.branches:
        at = shared((config.optimizer, smaller(amount)), (config.optimizer, budget))
        if at < 1:
            raise ConfigError(
                f"checkpoint.branches = {tuple(config.checkpoint.branches)}: a run of {amount:g} shares no step with "
                f"this one of {config.budget.amount:g}; optimizer.warmup_steps must end before its decay starts"
            )
        results[at] = amount
    return results


def leaves_at(config: ConfigDict, budget: Budget, theirs: Any) -> int:
    """Returns the step of `config.init_from` that a branch continues: the last checkpoint that both runs share.

    Args:
        config: the branch's, resolved, `model.vocab_size` set.
        budget: the branch's.
        theirs: returns the `Budget` of an amount, of equal stages.

    Raises:
        ConfigError: the source run differs in more than its decay, or has no checkpoint early enough.
    """
    source = config.init_from
    if not saved(source):
        raise ConfigError(f"init_from = {source!r}: has no checkpoint")
    there = runs.load_config(source)
    ours, its = fields.flatten(config), fields.flatten(there)
    wrong = [name for name in ours if ours[name] != its[name] and not name.startswith(OWN)]
    if wrong:
        differing = ", ".join(f"{name} is {its[name]!r} there and {ours[name]!r} here" for name in wrong[:5])
        raise ConfigError(f"init_state = 'branch': {source}: {differing}; a branch may differ only in its decay")
    at = shared((config.optimizer, budget), (there.optimizer, theirs(there.budget.amount)))
    early = [one for one in saved(source) if 0 < one <= at]
    if not early:
        raise ConfigError(
            f"init_state = 'branch': {source}: its checkpoints are of steps {', '.join(map(str, saved(source)))}, and "
            f"the learning rates agree only up to step {at}; checkpoint.branches of that run must name "
            f"{config.budget.amount:g}"
        )
    return early[-1]


def check_data(source: str | Path, fingerprint: str) -> None:
    """Refuses a branch of a run that was trained on other data.

    Raises:
        ConfigError: it was.
    """
    path = Path(source) / "run.json"
    values = read_json(path) if path.exists() else {}
    known = values.get("data", {}).get("fingerprint") if isinstance(values, dict) else None
    if known != fingerprint:
        raise ConfigError(f"init_state = 'branch': {source}: was trained on other data (fingerprint {known} there)")


def restore(config: ConfigDict, at: int, shapes: train_step.Abstract, workdir: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Returns (parameters, optimizer state, meta) of a step of `config.init_from`; its metrics go to `workdir`."""
    checkpoints = Checkpoints(config.init_from, read_only=True)
    try:
        params, opt_state, meta = checkpoints.restore(at, shapes.params, shapes.opt_state)
    finally:
        checkpoints.close()
    lines = read_lines(Path(config.init_from) / "metrics.jsonl", torn="skip")
    kept = [line for line in lines if line.get("step", 0) <= at]
    write_text(workdir / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
    return params, opt_state, meta
