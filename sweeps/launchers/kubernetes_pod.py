"""The entry point of a pod: `python -m sweeps.launchers.kubernetes_pod FOLDER [TRAIN EVALUATE]` does one run.

FOLDER is the Job's, on the claim; JOB_COMPLETION_INDEX selects the run. The outcome is written there as JSON, and the
pod succeeds whatever the outcome is. A run that was stopped is saved and its pod fails: if Kubernetes ended it
(eviction, preemption), it makes another, which continues.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from configs import cli
from configs.documents import ordinary
from configs.errors import UserError
from sweeps.execution.worker import EVALUATE, TRAIN, Job, redirect, work
from sweeps.launchers.queues.kubernetes_api import JOBS, withdrawn
from sweeps.store import jobs
from training.run_directory.files import write_json

STOPPED = 75  # EX_TEMPFAIL


def result(folder: Path, index: int) -> Path:
    """Returns the file of a run's outcome."""
    return folder / f"{index}_result.json"


def entry(job: Job) -> dict[str, object]:
    """Returns a job as JSON for its pod: data only."""
    names = ("study", "arm", "seed", "config", "evals", "timeout")
    return {name: getattr(job, name) for name in names}


def read(folder: Path, index: int, train: str = TRAIN, evaluate: str = EVALUATE) -> Job:
    """Returns a run of an array.

    Raises:
        UserError: the folder is missing, or has no such run.
    """
    path = folder / JOBS
    try:
        values = json.loads(ordinary(path).read_text(encoding="utf-8"))[index]["job"]
        job = Job(directory=str(folder.parents[2]), train=train, evaluate=evaluate, **values)
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(
            f"{path}: run {index} cannot be read ({type(error).__name__}: {error}); is the claim mounted at --mount?"
        ) from error
    known = jobs.Record("kubernetes", "0", job.arm, job.seed, "", "")
    if jobs.checked(vars(known)) is None:
        raise UserError(f"{path}: run {index} is not a run of a sweep")
    return Job(**{**vars(job), "evals": tuple(job.evals)})


def main(argv: list[str]) -> int:
    """Does one run."""

    def end(number: int, _: FrameType | None) -> None:
        os._exit(
            128 + number
        )  # nothing has started; the first process of a container ignores signals without a handler

    signal.signal(signal.SIGTERM, end)
    folder, index = Path(argv[0]), int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
    if withdrawn(folder, index).exists():
        print("withdrawn before it started")
        return 0
    job = read(folder, index, *argv[1:3])
    result(folder, index).unlink(missing_ok=True)  # of a pod that was stopped
    pods = os.dup(1), os.dup(2)  # the pod's own log, separate from the run's
    redirect(job.workdir / "log.txt")
    print(f"kubernetes job {os.environ.get('HOSTNAME', '?')}, completion {index}", flush=True)
    outcome = work(job)
    sys.stdout.flush()
    sys.stderr.flush()
    for number, descriptor in enumerate(pods, start=1):
        os.dup2(descriptor, number)
    write_json(result(folder, index), {"status": outcome.status, "error": outcome.error})
    print(f"{job.key}: {outcome.status} {outcome.error}".strip(), flush=True)
    return STOPPED if outcome.status == "preempted" else 0


if __name__ == "__main__":
    cli.main(main)
