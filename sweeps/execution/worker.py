"""The work of one worker process: trains runs and evaluates them, importing JAX once.

This module imports no JAX: the environment that assigns cores and devices must be set before JAX starts.
"""

import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import fields, interrupt, provenance
from configs.documents import read_json
from configs.errors import UserError
from configs.redaction import redacted
from sweeps.execution.deadline import Deadline
from sweeps.store import lease, run_status, state
from sweeps.store.run_status import now

TRAIN = "training.loop.trainer:train"
EVALUATE = "eval.run:evaluate"
TOGETHER = "training.loop.packed:train"
PATIENCE = 120.0  # seconds to wait for a process of an earlier launcher to release the run


@dataclass(frozen=True)
class Place:
    """Where a worker runs: its environment (cores, device), and the file for its output between jobs."""

    index: int
    env: dict[str, str] = field(default_factory=dict)
    log: str = os.devnull


@dataclass(frozen=True)
class Job:
    """One run to be trained as far as necessary, then evaluated. Functions are given as `module:function`."""

    directory: str  # the sweep's
    study: str
    arm: str
    seed: int
    config: dict[str, Any]
    evals: tuple[str, ...]
    train: str = TRAIN
    evaluate: str = EVALUATE
    timeout: float | None = None  # seconds for the whole job
    together: str = TOGETHER  # trains the runs of a pack
    companions: tuple["Job", ...] = ()  # runs that train with it in one program (sweeps/execution/packs.py)

    @property
    def key(self) -> str:
        """The run's folder below `runs/`."""
        return f"{self.arm}/seed{self.seed}"

    @property
    def workdir(self) -> Path:
        """The run directory."""
        return state.run_dir(Path(self.directory), self.arm, self.seed)


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `done`, `diverged`, `preempted`, `failed`, or `busy` (another process has the run)."""

    status: str
    error: str = ""
    others: tuple["Outcome", ...] = ()  # outcomes of the job's companions


def redirect(path: Path) -> None:
    """Redirects everything this process prints, from Python and from native code, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    follow_no_link = getattr(os, "O_NOFOLLOW", 0)  # refuses a symlink to another file
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | follow_no_link, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def work(job: Job) -> Outcome:
    """Trains and evaluates one run; errors end up in its files and in the outcome, never in an exception.

    A run that is done is not trained again, and an existing evaluation is not repeated. SIGTERM saves the run at any
    point; so does the job's timeout, after which the run counts as failed.
    """
    print(f"==== {now()} {job.key}, process {os.getpid()}", flush=True)
    with Deadline(job.timeout) as deadline:
        try:
            with lease.hold(state.run_lock(Path(job.directory), job.arm, job.seed), PATIENCE):
                if not left_alone(job.workdir):
                    return Outcome("busy", "another process is training it")
                if outcome := refused(job):
                    return outcome
                outcome = train(job, deadline)
                if outcome.status == "done":
                    outcome = evaluate(job, deadline)
                return outcome
        except lease.Held:
            return Outcome("busy", "another process is working on it")
        except KeyboardInterrupt:
            return Outcome("preempted", "stopped")


def refused(job: Job) -> Outcome | None:
    """Removes the record of a missing run directory; fails a run whose directory was moved back into a new one."""
    run_status.missing_file(job.workdir).unlink(missing_ok=True)
    if inside := run_status.nested(job.workdir):
        state.mark(job.workdir, status="failed", error=inside, updated=now())
        return Outcome("failed", inside)
    return None


def left_alone(workdir: Path) -> bool:
    """Waits until no other process of this host trains here (one left by an earlier launcher may still be saving).

    Other hosts are covered by the lease, which this process holds.
    """
    end = time.monotonic() + PATIENCE
    while True:
        run = run_json(workdir)
        own = run.get("pid") == os.getpid() or run.get("host") != socket.gethostname()
        if run.get("status") != "running" or own or not run_status.alive(run, workdir):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.5)


def run_json(workdir: Path) -> dict[str, Any]:
    """Returns a run's run.json; empty if there is none or it is unreadable."""
    try:
        value = read_json(workdir / "run.json")
    except UserError:
        return {}
    return value if isinstance(value, dict) else {}


def train(job: Job, deadline: Deadline) -> Outcome:
    """Trains one run as far as necessary."""
    workdir = job.workdir
    before = run_json(workdir)
    if changed := provenance.parent_problem(workdir, siblings_only=True):
        return Outcome("failed", changed)
    longer = before.get("status") == "done" and run_status.shorter(before, budget_amount(job))
    if before.get("status") in run_status.FINISHED and not longer:
        return Outcome(before["status"], str(before.get("error") or ""))
    try:
        function(job.train)(fields.from_dict(job.config), str(workdir))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            interrupt.answered()
            return stopped(workdir, deadline)
        print_trace(error)
        if run_json(workdir) == before:  # refused before it recorded anything, so the recorded error is an older one
            state.mark(workdir, status="failed", error=_told(error), updated=now())
            return Outcome("failed", _told(error))
        return ended(workdir, "failed", _told(error))
    run = run_json(workdir)
    status = run.get("status")
    if status == "preempted" and deadline.passed:
        return stopped(workdir, deadline)
    if status in ("done", "diverged", "preempted", "failed"):
        return Outcome(status, str(run.get("error") or ""))
    return ended(workdir, "failed", f"training returned with status {status!r}")


def budget_amount(job: Job) -> float | None:
    """Returns the run's budget in the sweep."""
    budget = job.config.get("budget")
    return budget.get("amount") if isinstance(budget, dict) else None


def stopped(workdir: Path, deadline: Deadline) -> Outcome:
    """Records a training that was stopped: by its own timeout, or from outside."""
    if deadline.passed:
        state.mark(workdir, status="failed", error=deadline.message, updated=now())
        return Outcome("failed", deadline.message)
    if not (workdir / "run.json").exists():  # not started, so nothing is recorded
        return Outcome("preempted", "stopped")
    return ended(workdir, "preempted", "stopped")


def ended(workdir: Path, status: str, error: str) -> Outcome:
    """Records how the training ended if the trainer did not."""
    run = run_json(workdir)
    if run.get("status") not in ("failed", "preempted", "diverged"):
        state.mark(workdir, status=status, error=error, updated=now())
        return Outcome(status, error)
    return Outcome(run["status"], str(run.get("error") or error))


def print_trace(error: BaseException) -> None:
    """Prints an error's traceback without secrets."""
    print(redacted("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True)


def _told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def evaluate(job: Job, deadline: Deadline) -> Outcome:
    """Runs the evaluations without a result of the run's current state; records failures and continues."""
    here = provenance.directory(job.workdir)
    left = [name for name in job.evals if provenance.problem(job.workdir, name, here)]
    for name in left:
        record_eval_error(job.workdir, name, None)  # of an earlier attempt
    for name in left:
        if deadline.passed:
            record_eval_error(job.workdir, name, deadline.message)
            continue
        print(f"==== {now()} evaluating: {name}", flush=True)
        try:
            function(job.evaluate)(str(job.workdir), [name])
            if not (job.workdir / "eval" / f"{name}.json").is_file():
                record_eval_error(job.workdir, name, f"wrote no eval/{name}.json")
        except (Exception, SystemExit) as error:
            print_trace(error)
            record_eval_error(job.workdir, name, _told(error))
        except KeyboardInterrupt:
            if not deadline.passed:
                raise
            interrupt.answered()
            record_eval_error(job.workdir, name, deadline.message)
    if not job.workdir.is_dir():
        return Outcome("failed", "its directory vanished while it was evaluated")
    return Outcome("done")


def record_eval_error(workdir: Path, name: str, error: str | None) -> None:
    """Records in run.json that an evaluation failed, or (None) that it no longer does; the run stays done."""
    errors = dict(run_json(workdir).get("eval_errors") or {})
    if error is None and name not in errors:
        return
    errors.pop(name, None)
    if error is not None:
        errors[name] = error
    state.mark(workdir, eval_errors=errors)


def function(name: str) -> Callable[..., Any]:
    """Returns the function for `module:function`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
