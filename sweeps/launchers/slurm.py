"""The Slurm launcher: every run is a task of a job array, through submitit; jobs continue when the launcher ends.

Each array has a new folder with a random name that only the user can enter, with submitit's pickles, which only the job
reads; a launcher reads none. A job's state comes from three sources: the outcome that it wrote (JSON, in that folder),
the run's own files, and `squeue`. A run that Slurm stops (preemption, a failed or rebooted node) is requeued by Slurm
under the same job; one that reaches its time limit saves itself in time and requeues itself. Neither needs the
launcher.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from configs.documents import ordinary
from configs.errors import UserError
from configs.folders import private
from sweeps.execution import multiprocess
from sweeps.execution.worker import Job, Outcome, redirect, work
from sweeps.launchers.batch import LATE, POLL, SETTLED, BatchEngine, Held, digest, outcome
from sweeps.launchers.launcher import (
    CPUS,
    GPUS,
    MEMORY,
    NTASKS,
    Built,
    Ended,
    Launcher,
    Option,
    Queue,
    count,
    exclusive,
    pairs,
)
from sweeps.launchers.queues import squeue
from sweeps.launchers.queues.slurm_options import MOST, Options, parameters, variables
from sweeps.launchers.resources import THREADS
from sweeps.store import jobs, run_status, state
from sweeps.store.run_status import now
from training.run_directory.files import own, write_json
from training.runtime.distributed import slurm_tasks

JOBS = "jobs.json"  # in an array's folder: the tasks of its jobs


class SlurmEngine(BatchEngine):
    """Submits jobs as arrays. A place is only a number here: Slurm selects the nodes."""

    name = "slurm"
    detached = True
    tick = 1.0

    def __init__(self, directory: Path, options: Options, workers: int | None = None) -> None:
        """`workers`: maximum jobs in the queue.

        Raises:
            UserError: submitit is not installed, Slurm does not answer, or an option or a variable is not allowed.
        """
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--launcher=slurm needs submitit: pip install 'submitit', or make setup EXTRAS=dev,slurm"
            ) from None
        if not squeue.answers():
            raise UserError("--launcher=slurm: Slurm does not answer here (squeue fails)")
        super().__init__(directory, min(workers or MOST, MOST))
        self.submitit = submitit
        # submitit keeps pickles there, which execute code when a job reads them.
        own(directory, state.PRIVATE, str(jobs.SUBMITTED))
        self.folder = private(directory / jobs.SUBMITTED, "the jobs of submitit")
        self.parameters = parameters(directory, options)
        self.variables = variables(os.environ, self.parameters)

    def adopt(self, expected: Mapping[str, Job]) -> dict[int, Job]:
        """Attaches to jobs that an earlier launcher queued, which wait or run, and match the sweep.

        A waiting job that is no longer in the sweep, or has changed, is withdrawn.
        """
        records = [*self._noted(), *self._unnoted()]
        said = squeue.of_sweep(self.directory, records)
        back = []
        for record in records:
            word, job = said.get(record.key), expected.get(record.key)
            if word is None or word.over or self._outcome(record.id, record.array) is not None:
                jobs.forget(self.directory, record.arm, record.seed)
            elif job is not None and (record.digest == digest(job) or word.runs):
                self.held[len(self.held)] = Held(job, record.id, record.array, word=word)
                jobs.note(self.directory, record)
            elif word.waits:
                back.append(record.id)
                jobs.forget(self.directory, record.arm, record.seed)
        squeue.cancel(back)
        return {place: held.job for place, held in self.held.items()}

    def _noted(self) -> list[jobs.Record]:
        records = jobs.noted(self.directory)
        return [record for record in records if record.engine == self.name and squeue.ID.fullmatch(record.id)]

    def _unnoted(self) -> list[jobs.Record]:
        """Returns the jobs that a launcher queued just before it was killed."""
        noted = self._noted()
        known, keys = {record.id for record in noted}, {record.key for record in noted}
        results = []
        for identity, word in (squeue.queue() or {}).items():
            if not word.over and identity not in known and squeue.belongs(self.directory, word):
                record = self._planned(identity, Path(word.script).parent.name)
                if record is not None and record.key not in keys:
                    results.append(record)
        return results

    def _planned(self, identity: str, array: str) -> jobs.Record | None:
        """Returns an array task's work, as written before the array was queued."""
        try:
            planned = json.loads(ordinary(self.folder / array / JOBS).read_text(encoding="utf-8"))
            entry = planned[int(identity.partition("_")[2] or 0)]
            return jobs.checked({**entry, "id": identity, "array": array})
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def _record(self, identity: str, array: str, job: Job) -> jobs.Record:
        return jobs.Record(self.name, identity, job.arm, job.seed, digest(job), now(), array)

    def _outcome(self, identity: str, array: str) -> Outcome | None:
        """Returns the outcome that a job wrote; None if there is none."""
        return outcome(_result(self.folder / array, identity)) if array else None

    def _log(self, held: Held) -> Path:
        """Returns the file of a job's own output through submitit."""
        return self.folder / held.array / f"{held.id}_0_log.out"

    def _submit(self) -> None:
        """Queues the new jobs as one array.

        Raises:
            UserError: sbatch refuses them.
        """
        if not self.new:
            return
        places, todo = list(self.new), list(self.new.values())
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        write_json(folder / JOBS, [asdict(self._record("0", folder.name, job)) for job in todo])
        try:
            executor = self.submitit.SlurmExecutor(folder=folder)
            executor.update_parameters(**self.parameters)
            with _environment({**squeue.environment(os.environ), **self.variables}):
                queued = executor.map_array(task, todo)
        except (self.submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
            message = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
            raise UserError(f"--launcher=slurm: sbatch refuses the jobs: {(message or ['?'])[-1].strip()}") from error
        for place, job, item in zip(places, todo, queued, strict=True):
            jobs.note(self.directory, self._record(item.job_id, folder.name, job))
            self.held[place] = Held(job, item.job_id, folder.name)
        self.new = {}
        self.wait = POLL[0]

    def _ask(self) -> None:
        """Queries Slurm for the jobs' states."""
        if self._due():
            said = squeue.states([held.id for held in self.held.values()])
            self.last_query = time.monotonic()
            self._hear(said)

    def _result(self, place: int, held: Held) -> Ended | None:
        ended = self._outcome(held.id, held.array)
        return None if ended is None else Ended(place, held.job, ended)

    def _end(self, place: int, held: Held) -> Ended | None:
        """Returns how a job without a result ended, if it did."""
        passed = time.monotonic() - held.since if held.since else 0.0
        name, word = f"slurm job {held.id}", held.word
        if word is None or not word.over:
            return None
        begun = word.state != squeue.GONE or self._log(held).exists()
        if passed < (LATE if begun and word.state in ("COMPLETED", squeue.GONE) else SETTLED):
            return None
        if word.state == "CANCELLED" or not begun:
            return Ended(place, held.job, None, f"{name} was cancelled", "cancelled")
        if word.state in squeue.LOST:
            return Ended(place, held.job, None, f"{name}: {word.state}", "lost")
        how = squeue.exit_code(held.id)
        return Ended(place, held.job, None, f"{name}: {word.state}{f', {how}' if how else ''}")

    def _cancel(self, ids: Sequence[str]) -> None:
        squeue.cancel(ids)

    def close(self) -> None:
        """Does nothing: jobs continue without their launcher."""


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Sets this process's environment to `env` for a block: submitit's subprocesses inherit it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _result(folder: Path, identity: str) -> Path:
    return folder / f"{identity}_result.json"


def task(job: Job) -> None:
    """Does one run inside a Slurm job, and writes its outcome: called by submitit."""
    folder, identity = Path(os.environ["SUBMITIT_FOLDER"]), _me()
    # Until the run's own handlers are set, a request to stop ends the process: nothing is lost.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or "1"
    os.environ.update(dict.fromkeys(THREADS, cpus))
    noticed: list[int] = []

    def notice(number: int, _: FrameType | None) -> None:
        noticed.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR2, notice)
    submitits = os.dup(1), os.dup(2)  # its own log, separate from the run's
    redirect(job.workdir / "log.txt")
    before = run_status.read(job.workdir).step
    tasks, index = slurm_tasks(os.environ), int(os.environ.get("SLURM_PROCID", "0"))
    which = f", process {index} of {tasks}" if tasks > 1 else ""
    print(f"slurm job {_me()} on {os.environ.get('SLURMD_NODENAME', '?')}{which}", flush=True)
    # A run with a single process is trained in this process.
    lead = replace(job, train=multiprocess.TRAIN) if tasks > 1 else job
    outcome = multiprocess.follow(job) if index else work(lead)
    sys.stdout.flush()
    sys.stderr.flush()
    for number, descriptor in enumerate(submitits, start=1):
        os.dup2(descriptor, number)
    if outcome.status == "preempted" and index == 0:
        if noticed and run_status.read(job.workdir).step > before:
            _requeue()
        elif not noticed:
            _leave()
    if index == 0:
        write_json(_result(folder, identity), {"status": outcome.status, "error": outcome.error})


def _me() -> str:
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID", "?")


def _requeue() -> None:
    """Requeues this job and waits to be ended; returns if Slurm refuses, and the launcher requeues instead."""
    print("time limit reached: saved and requeued", flush=True)
    done = subprocess.run(["scontrol", "requeue", _me()], capture_output=True, text=True)
    if done.returncode == 0:
        time.sleep(600)
    print(f"scontrol requeue: {done.stderr.strip()}", file=sys.stderr, flush=True)


def _leave() -> None:
    """Ends this process without a result if Slurm is ending the job: Slurm decides whether it continues."""
    word = squeue.states([_me()]).get(_me())
    if word is not None and word.state != "RUNNING":
        os._exit(0)


SBATCH = Option("OPTION=VALUE", "any other option of sbatch, such as qos=high; repeatable", True)


def _build(directory: Path, options: Mapping[str, Any], workers: int | None, runs: int) -> Built:
    gpus, ntasks, nodes = count(options, "gpus", 0), count(options, "ntasks") or 1, count(options, "nodes") or 1
    if ntasks % nodes:
        raise UserError(f"--ntasks={ntasks}: must be a multiple of --nodes={nodes}")
    requested = Options(
        partition=options.get("partition"),
        account=options.get("account"),
        time=options.get("time"),
        cpus=count(options, "cpus"),
        gpus=gpus,
        ntasks=ntasks,
        nodes=nodes,
        memory=options.get("memory"),
        extra=pairs(options, "sbatch", SBATCH, bare=True),
    )
    return Built(SlurmEngine(directory, requested, workers), "queued on Slurm", exclusive(gpus, workers))


SLURM = Launcher(
    "slurm",
    _build,
    options={
        "partition": Option("NAME", "the partition"),
        "account": Option("NAME", "the account to charge"),
        "time": Option("LIMIT", "a job's time limit (4:00:00); a run that reaches it is saved and requeued"),
        "sbatch": SBATCH,
        "ntasks": NTASKS,
        "nodes": Option("N", "number of nodes for a run's processes"),
        "cpus": CPUS,
        "gpus": GPUS,
        "memory": MEMORY,
    },
    queue=Queue("Slurm", squeue.ID, squeue.of_sweep, squeue.cancel),
)
