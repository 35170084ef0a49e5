"""From a config and a directory to a run that can begin: what is there already, the data, the plan, run.json.

Everything that can be refused is refused here, before anything is on a device.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

import data as data_room
from configs import environment, fields, provenance
from configs.errors import ConfigError, UserError
from configs.rules import branches as longer
from configs.rules import tasks
from data import pipeline
from training.devices import memory
from training.loop.metrics import Console
from training.loop.state import Plan, Run
from training.run_directory import branches, inherit
from training.run_directory import record as records
from training.run_directory import run as runs
from training.run_directory.checkpoint import saved
from training.run_directory.files import begun, own, write_json
from training.run_directory.run_lock import Place
from training.runtime import distributed, settings
from training.step import mesh as meshes

FOLDERS = ("checkpoints", "damaged", "eval", "tensorboard", "tokenizer", "wandb")  # written by the run


@dataclass(frozen=True)
class History:
    """What a run directory holds of this run: its run.json, and the smaller budget that it had, if it is lengthened."""

    record: dict[str, Any] = field(default_factory=dict)
    shorter: float | None = None

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.record.get("status") == "done" and self.shorter is None


def ready(config: ConfigDict, workdir: Path, *, quiet: bool, mesh: Mesh | None = None) -> Run | dict[str, Any]:
    """Prepares a run; returns its run.json instead where it is finished.

    Args:
        config: resolved; `model.vocab_size` is set.
        workdir: held by this process (`run_lock.exclusive`).
        quiet: no progress output.
        mesh: of several devices.

    Raises:
        UserError: the directory holds another run, or the config cannot be trained here.
    """
    prepared: list[Run] = []
    started, place = time.perf_counter(), Place(workdir)
    console = Console(config.name or workdir.name, quiet or not distributed.main())

    def prepare() -> dict[str, Any] | None:
        own(workdir, *FOLDERS)
        history = _history(config, workdir) if distributed.main() else History()
        if history.finished:
            return history.record
        plan = _plan(config, workdir, mesh)
        stream = pipeline.TrainStream(config, plan.tokenizer, plan.corpus, plan.share)
        kept, branch_at = _steps(plan, history)
        record = _record(plan, history, branching=branch_at is not None)
        prepared.append(Run(plan, stream, record, place, console, history.record, kept, branch_at, started))
        return None

    finished = distributed.agreed(prepare)
    return prepared[0] if finished is None else finished


def _history(config: ConfigDict, workdir: Path) -> History:
    """Compares a config with what the directory holds."""
    if not (workdir / "config.json").exists():
        return History()
    if not begun(workdir) and records.read(workdir / "run.json").get("status") == "failed":
        return History()  # a start that failed before its first step keeps nothing
    here, expected = fields.flatten(runs.load_config(workdir)), fields.flatten(config)
    if expected["model.vocab_size"] is None:
        expected["model.vocab_size"] = here["model.vocab_size"]
    other, shorter = fields.differences(here, expected), None
    if longer.lengthened(here, expected, other):
        shorter = here["budget.amount"]
    elif other:
        message = ", ".join(f"{name} is {here[name]!r} there and {expected[name]!r} here" for name in other[:5])
        raise UserError(f"{workdir}: has a run of another config ({message}); use another --workdir")
    history = History(records.read(workdir / "run.json"), shorter)
    if parent := provenance.parent_problem(workdir):
        raise UserError(f"{workdir}: {parent}; train it in another --workdir")
    if not history.finished and "jax_settings" in history.record and saved(workdir):
        changed = environment.differing(history.record["jax_settings"], settings.in_force())
        if changed:
            message = "; ".join(changed)
            raise UserError(f"{workdir}: was started with other settings of JAX: {message}; restore them")
    return history


def _plan(config: ConfigDict, workdir: Path, mesh: Mesh | None) -> Plan:
    """Opens the data and completes the config."""
    corpus = runs.open_data(config)
    tokenizer = runs.open_tokenizer(config, corpus)
    needed = max(tokenizer.vocab_size if tokenizer else 0, config.data.vocab_size or 0)
    if config.model.vocab_size is None:
        config.model.vocab_size = max(needed, tasks.vocabulary(config))
    if config.model.vocab_size < needed:
        raise ConfigError(f"model.vocab_size = {config.model.vocab_size}: the tokenizer has {needed} tokens")
    _refuse_too_large(config, workdir)
    if config.init_from and not saved(workdir):
        inherit.check(config, tokenizer)
    rules = meshes.rules_of(config, mesh)
    return Plan(config, workdir, mesh, rules, meshes.share(rules), corpus, tokenizer, distributed.main())


def _refuse_too_large(config: ConfigDict, workdir: Path) -> None:
    """Raises ConfigError where this machine cannot hold what no compiler can do without."""
    device = jax.devices()[0]
    there = memory.memory() if device.platform == "cpu" else (device.memory_stats() or {}).get("bytes_limit", 0)
    needed = memory.held(config, device.platform, jax.device_count())
    if there and needed > there:
        raise ConfigError(
            f"{config.name or workdir.name} does not fit: its parameters, gradients and optimizer alone "
            f"need {needed / 2**20:,.1f} MiB, and this {'machine' if device.platform == 'cpu' else 'device'} has "
            f"{there / 2**20:,.1f} MiB"
        )


def _steps(plan: Plan, history: History) -> tuple[dict[int, float], int | None]:
    """Returns the steps whose checkpoints are kept for branches, and the step at which this branch leaves."""
    config, done = plan.config, saved(plan.workdir)
    if history.shorter is not None and done:
        branches.check_longer(config, plan.budget_of(history.shorter), plan.budget, done[-1])
    kept = branches.kept_steps(config, plan.budget, plan.budget_of)
    branching = config.init_state == "branch" and not done
    return kept, branches.leaves_at(config, plan.budget, plan.budget_of) if branching else None


def _record(plan: Plan, history: History, *, branching: bool) -> records.Record:
    """Compares the data with what is there; writes config.json, tokenizer and run.json, and returns the last."""
    config, workdir = plan.config, plan.workdir
    fingerprint = data_room.fingerprint(config, plan.corpus, plan.tokenizer)
    if branching:
        branches.check_data(config.init_from, fingerprint["fingerprint"])
    known = history.record.get("data", {}).get("fingerprint")
    if known not in (None, fingerprint["fingerprint"]):
        raise UserError(f"{workdir}: was trained on other data (fingerprint {known} there)")
    record = records.Record(workdir, records.describe(config, fingerprint, plan.mesh), writes=plan.main)
    _refuse_other_count(config, workdir, history, record)
    if history.record:
        record.values |= _continued(config, history, resumed=bool(saved(workdir)))
    if plan.main:
        write_json(workdir / "config.json", fields.to_dict(config))
        if plan.tokenizer is not None:
            plan.tokenizer.save(workdir / "tokenizer")
    record.update()
    return record


def _refuse_other_count(config: ConfigDict, workdir: Path, history: History, record: records.Record) -> None:
    """Refuses to resume a budget in FLOPs where an earlier version counted them otherwise: it would be other steps."""
    here, there = record.values["flops_per_token"], history.record.get("flops_per_token")
    if config.budget.kind != "flops" or not saved(workdir) or not isinstance(there, dict):
        return
    if there.get("value") != here["value"]:
        raise UserError(
            f"{workdir}: began with {there.get('value')} FLOPs a token ({there.get('formula')}), {here['value']} here "
            f"({here['formula']}): budget.kind = 'flops' is another number of steps; use another --workdir"
        )


def _continued(config: ConfigDict, history: History, *, resumed: bool) -> dict[str, Any]:
    """Returns what run.json keeps of the one before; what a run is differs with its budget."""
    before = history.record
    kept: dict[str, Any] = {name: before[name] for name in ("started", "incidents") if name in before}
    if resumed and "identity" in before:
        kept["identity"] = before["identity"]
    lengthened = [*before.get("lengthened", [])]
    if history.shorter is not None:
        lengthened.append({"from": history.shorter, "to": config.budget.amount, "time": records.now()})
        if resumed:
            parents = before.get("identity", {}).get("parents")
            kept["identity"] = provenance.identity(fields.to_dict(config), parents)
    return {**kept, "lengthened": lengthened} if lengthened else kept
