"""The Slurm launcher: every run a task of a job array, by submitit; the jobs go on where the launcher ends.

Each array has a new folder of random name, which its user alone may enter: submitit's pickles lie there, and are read
by the job alone; a launcher reads none. Three things are asked how a job stands: the outcome that it wrote (JSON, in
that folder), the run's own files, and `squeue`. A run that Slurm stops before its end (preemption, a node that fails or
is rebooted) is queued again under its own job by Slurm; one that comes to its time limit saves itself in time and has
itself queued again. Neither needs the launcher.
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

JOBS = "jobs.json"  # in an array's folder: what each of its tasks is to do


class SlurmEngine(BatchEngine):
    """Queues jobs as arrays. A place is no more than a number here: Slurm finds the nodes."""

    name = "slurm"
    detached = True
    tick = 1.0

    def __init__(self, directory: Path, options: Options, workers: int | None = None) -> None:
        """`workers`: jobs that are queued at once, at most.

        Raises:
            UserError: submitit is not installed, no Slurm answers, or an option or a variable cannot be taken.
        """
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--launcher=slurm needs submitit: pip install 'submitit', or make setup EXTRAS=dev,slurm"
            ) from None
        if not squeue.answers():
            raise UserError("--launcher=slurm: no Slurm answers here (squeue fails)")
        super().__init__(directory, min(workers or MOST, MOST))
        self.submitit = submitit
        # submitit keeps pickles there, which run what they hold when a job reads them.
        own(directory, state.PRIVATE, str(jobs.SUBMITTED))
        self.folder = private(directory / jobs.SUBMITTED, "the jobs of submitit")
        self.parameters = parameters(directory, options)
        self.variables = variables(os.environ, self.parameters)

    def adopt(self, expected: Mapping[str, Job]) -> dict[int, Job]:
        """Takes up what an earlier launcher queued: jobs that wait or run, and ask for what is wanted now.

        A job that waits but is no longer wanted, or in another form, is taken back.
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
        """Returns the jobs that a launcher queued in the moment before it was killed."""
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
        """Returns what a task of an array is to do, as it was written down before the array was queued."""
        try:
            planned = json.loads(ordinary(self.folder / array / JOBS).read_text(encoding="utf-8"))
            entry = planned[int(identity.partition("_")[2] or 0)]
            return jobs.checked({**entry, "id": identity, "array": array})
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def _record(self, identity: str, array: str, job: Job) -> jobs.Record:
        return jobs.Record(self.name, identity, job.arm, job.seed, digest(job), now(), array)

    def _outcome(self, identity: str, array: str) -> Outcome | None:
        """Returns how a job says that it ended; None where it has not."""
        return outcome(_result(self.folder / array, identity)) if array else None

    def _log(self, held: Held) -> Path:
        """Returns where submitit has a job's own output go."""
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
            raise UserError(
                f"--launcher=slurm: sbatch does not take the jobs: {(message or ['?'])[-1].strip()}"
            ) from error
        for place, job, item in zip(places, todo, queued, strict=True):
            jobs.note(self.directory, self._record(item.job_id, folder.name, job))
            self.held[place] = Held(job, item.job_id, folder.name)
        self.new = {}
        self.wait = POLL[0]

    def _ask(self) -> None:
        """Asks Slurm how the jobs stand."""
        if self._due():
            said = squeue.states([held.id for held in self.held.values()])
            self.last_query = time.monotonic()
            self._hear(said)

    def _result(self, place: int, held: Held) -> Ended | None:
        ended = self._outcome(held.id, held.array)
        return None if ended is None else Ended(place, held.job, ended)

    def _end(self, place: int, held: Held) -> Ended | None:
        """Returns how a job ended that left no result, if it did."""
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
        """Does nothing: jobs go on without their launcher."""


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Has this process's environment be `env` for a block: what submitit starts gets it."""
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
    """Does one run inside a Slurm job, and writes its outcome: what submitit calls there."""
    folder, identity = Path(os.environ["SUBMITIT_FOLDER"]), _me()
    # Until the run's own handlers are set, being told to stop means to end at once: nothing is lost.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cpus = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or "1"
    os.environ.update(dict.fromkeys(THREADS, cpus))
    noticed: list[int] = []

    def notice(number: int, _: FrameType | None) -> None:
        noticed.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR2, notice)
    submitits = os.dup(1), os.dup(2)  # its own log, which is not the run's
    redirect(job.workdir / "log.txt")
    before = run_status.read(job.workdir).step
    tasks, index = slurm_tasks(os.environ), int(os.environ.get("SLURM_PROCID", "0"))
    which = f", process {index} of {tasks}" if tasks > 1 else ""
    print(f"slurm job {_me()} on {os.environ.get('SLURMD_NODENAME', '?')}{which}", flush=True)
    # Without others a run is trained in this process.
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
    """Has this job queued again, and waits to be ended; returns where Slurm does not take it, and the launcher does."""
    print("its time is up: saved, and queued again", flush=True)
    done = subprocess.run(["scontrol", "requeue", _me()], capture_output=True, text=True)
    if done.returncode == 0:
        time.sleep(600)
    print(f"scontrol requeue: {done.stderr.strip()}", file=sys.stderr, flush=True)


def _leave() -> None:
    """Ends this process without a result where Slurm is ending the job: whether it goes on is Slurm's to say."""
    word = squeue.states([_me()]).get(_me())
    if word is not None and word.state != "RUNNING":
        os._exit(0)


SBATCH = Option("OPTION=VALUE", "any other option of sbatch, such as qos=high; may be given several times", True)


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
        "account": Option("NAME", "the account that is charged"),
        "time": Option("LIMIT", "a job's time limit (4:00:00); a run that comes to it is saved and queued again"),
        "sbatch": SBATCH,
        "ntasks": NTASKS,
        "nodes": Option("N", "nodes that a run's processes are spread over"),
        "cpus": CPUS,
        "gpus": GPUS,
        "memory": MEMORY,
    },
    queue=Queue("Slurm", squeue.ID, squeue.of_sweep, squeue.cancel),
)
