"""Packs: several runs trained by one worker in one program (`training/loop/packed.py`). No JAX.

A pack is a job with companions. Each of its runs has its own lock, run directory, log and outcome, and is evaluated
separately; a run that cannot be trained with the others is trained alone.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import fields
from configs.errors import UserError
from sweeps.execution import worker
from sweeps.execution.deadline import Deadline
from sweeps.execution.worker import Job, Outcome
from sweeps.store import lease, run_status, state
from sweeps.store.run_status import now
from training.loop import pack_compat


def check(number: int, launcher: str, packs: bool) -> None:
    """Checks that a launcher supports --pack; `packs` says whether it does.

    Raises:
        UserError: it does not.
    """
    if number < 1:
        raise UserError(f"--pack={number}: must be 1 or more")
    if number > 1 and not packs:
        raise UserError(f"--pack={number}: --launcher={launcher} gives each run its own process; must be 1")


def companions(job: Job, others: Iterable[Job], most: int, chosen: Callable[[Job], Job]) -> list[tuple[Job, Job]]:
    """Returns up to `most` jobs that can train with `job`: (as they wait, with the values selected for them)."""
    key = pack_compat.key(fields.from_dict(job.config)) if most > 0 and _trains(job) else None
    if key is None:
        return []
    results: list[tuple[Job, Job]] = []
    for other in list(others):
        if len(results) == most:
            break
        if _trains(other):
            bound = chosen(other)
            if pack_compat.key(fields.from_dict(bound.config)) == key:
                results.append((other, bound))
    return results


def _trains(job: Job) -> bool:
    return worker.run_json(job.workdir).get("status") not in run_status.FINISHED


def work(lead: Job) -> Outcome:
    """Does a job with companions, like `worker.work`; the outcome contains theirs.

    Its timeout is multiplied by its number of runs.
    """
    jobs = (lead, *lead.companions)
    print(f"==== {now()} {', '.join(job.key for job in jobs)} in one program, process {os.getpid()}", flush=True)
    outcomes: dict[str, Outcome] = {}
    with Deadline(lead.timeout and lead.timeout * len(jobs)) as deadline, ExitStack() as held:
        try:
            free = [job for job in jobs if _held(job, held, outcomes)]
            _train(free, deadline, outcomes)
            for job in free:
                if outcomes[job.key].status == "done":
                    worker.redirect(job.workdir / "log.txt")
                    outcomes[job.key] = worker.evaluate(job, deadline)
        except KeyboardInterrupt:
            for job in jobs:
                if job.key not in outcomes:
                    outcomes[job.key] = worker.stopped(job.workdir, deadline)
    first, *others = (outcomes[job.key] for job in jobs)
    return replace(first, others=tuple(others))


def _held(job: Job, held: ExitStack, outcomes: dict[str, Outcome]) -> bool:
    try:
        held.enter_context(lease.hold(state.run_lock(Path(job.directory), job.arm, job.seed), worker.PATIENCE))
    except lease.Held:
        outcomes[job.key] = Outcome("busy", "another process is working on it")
        return False
    if not worker.left_alone(job.workdir):
        outcomes[job.key] = Outcome("busy", "another process is training it")
        return False
    if refused := worker.refused(job):
        outcomes[job.key] = refused
    return refused is None


def _train(jobs: Sequence[Job], deadline: Deadline, outcomes: dict[str, Outcome]) -> None:
    """Trains the runs together; if that fails, each continues alone from its last checkpoint, which also records why.

    One whose directory vanished does not: it would start from scratch, and the directory may be restored.
    """
    if not jobs:
        return
    ended: dict[str, dict[str, Any]] = {}
    try:
        configs = [fields.from_dict(job.config) for job in jobs]
        results = worker.function(jobs[0].together)(configs, [str(job.workdir) for job in jobs])
        ended = {job.key: result for job, result in zip(jobs, results, strict=True)}
    except Exception as error:
        worker.print_trace(error)
        print(f"==== {now()} not in one program: each run trains alone", flush=True)
    for job in jobs:
        run = worker.run_json(job.workdir)
        if not run and job.key in ended:
            outcomes[job.key] = worker.ended(job.workdir, "failed", str(ended[job.key].get("error")))
        elif run.get("status") == "preempted":
            outcomes[job.key] = worker.stopped(job.workdir, deadline)
        elif run.get("status") == "failed" or run.get("status") not in run_status.FINISHED:
            outcomes[job.key] = worker.train(job, deadline)
        else:
            outcomes[job.key] = Outcome(run["status"], str(run.get("error") or ""))
