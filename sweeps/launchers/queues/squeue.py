"""Slurm's job states, through its commands (`squeue`, `sacct`, `scancel`); works without a launcher."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.errors import UserError
from sweeps.store.jobs import SUBMITTED, JobState, Record

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "STOPPED", "RESIZING", "SIGNALING")
LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "TIMEOUT")  # caused by the cluster: the run is resumed later
GONE = "GONE"  # our own state: Slurm answers, and has no such job
PATIENCE = 60.0  # timeout in seconds of Slurm's commands
ID = re.compile(r"\d{1,10}(_\d{1,10})?", re.ASCII)  # a job, or a task of an array
# These select the cluster, and every command gets them. Other variables would hide jobs from squeue and scancel
# (SQUEUE_STATES, SCANCEL_NAME), or describe the job in which the launcher itself runs.
CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT")
OURS = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SCONTROL", "SUBMITIT")


def job_state(state: str, reason: str = "", script: str = "") -> JobState:
    """Returns the meaning of one of Slurm's states."""
    if state in WAITING:
        return JobState(state, reason, script, "waiting")
    if state in AT_WORK:
        return JobState(state, reason, script, "running")
    return JobState(state, reason, script, "over", silent=state in ("COMPLETED", GONE))


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of Slurm's commands, the same for all, so that all use one cluster.

    Raises:
        UserError: the variables name several clusters, whose jobs could have the same id.
    """
    kept = {name: value for name, value in env.items() if name in CLUSTER or not name.startswith(OURS)}
    if env.get("SBATCH_CLUSTERS"):  # sbatch prefers it to SLURM_CLUSTERS, the other commands ignore it
        kept["SLURM_CLUSTERS"] = env["SBATCH_CLUSTERS"]
    clusters = kept.get("SLURM_CLUSTERS", "")
    if "," in clusters or clusters.strip() == "all":
        raise UserError(f"SLURM_CLUSTERS={clusters}: must name one cluster")
    return kept


def queue() -> dict[str, JobState] | None:
    """Returns every job of this user that the controller knows, by id; None if it does not answer."""
    text = _run(["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r|%o"])
    return None if text is None else _parsed(text)


def states(ids: Sequence[str]) -> dict[str, JobState]:
    """Returns Slurm's states of jobs (`12` or `12_3`); empty if it does not answer.

    `squeue` knows a job until some minutes after its end; later only `sacct` does, if the cluster has it. A task of an
    array that is cancelled before it starts is GONE at once.
    """
    if not ids:
        return {}
    expected = set(ids)
    known = queue()
    if known is None:
        return {}
    results = {job: word for job, word in known.items() if job in expected}
    left = [job for job in ids if job not in results and ID.fullmatch(job)]
    for start in range(0, len(left), 500):  # command lines have a maximum length
        some = ",".join(left[start : start + 500])
        text = _run(["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State,Reason", f"--jobs={some}"])
        results |= {job: word for job, word in _parsed(text or "").items() if job in expected}
    return results | {job: job_state(GONE) for job in ids if job not in results}


def of_sweep(directory: Path, records: Sequence[Record]) -> dict[str, JobState]:
    """Returns Slurm's states of a sweep's jobs, by the run's key; empty if it does not answer.

    A job whose script is not in the sweep's directory is not the sweep's, whatever a record says: it is GONE.
    """
    said = states([record.id for record in records if ID.fullmatch(record.id)])
    results = {}
    for record in records:
        word = said.get(record.id)
        if word is not None:
            alien = not word.over and not belongs(directory, word)
            results[record.key] = job_state(GONE) if alien else word
    return results


def belongs(directory: Path, word: JobState) -> bool:
    """Returns whether a job runs a script written by a launcher of this sweep."""
    return any((base / SUBMITTED) in Path(word.script).parents for base in (directory.absolute(), directory.resolve()))


def answers() -> bool:
    """Returns whether Slurm's controller answers."""
    return _run(["squeue", "--me", "--noheader"]) is not None


def _parsed(text: str) -> dict[str, JobState]:
    results = {}
    for line in text.splitlines():
        job, state, reason, script = [*line.split("|", 3), "", "", ""][:4]
        if ID.fullmatch(job) and state:
            # sacct writes `CANCELLED by 0`; squeue gives `None` as the reason of a job without one.
            results[job] = job_state(state.split()[0], "" if reason in ("None", "Unknown") else reason, script)
    return results


def exit_code(job: str) -> str:
    """Returns how a job's process ended, in words; empty if Slurm does not say."""
    match = re.search(r"\bExitCode=(\d+):(\d+)", _run(["scontrol", "show", "job", job, "--oneliner"]) or "")
    if not match:
        return ""
    code, number = int(match[1]), int(match[2])
    # A shell, and srun, report 128 + the signal for a process ended by a signal.
    killed = number or (code - 128 if code > 128 else 0)
    return f"killed by signal {killed}" if killed else f"exit code {code}"


def cancel(ids: Sequence[str]) -> None:
    """Cancels jobs in Slurm: waiting ones at once, running ones after the time it gives them to save (KillWait).

    Raises:
        UserError: Slurm refuses.
    """
    for start in range(0, len(ids), 500):
        command = ["scancel", *ids[start : start + 500]]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, env=environment(os.environ)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"scancel: {error}") from error
        # Jobs that have ended meanwhile are not errors.
        if done.returncode and "Invalid job id" not in done.stderr and "already" not in done.stderr:
            raise UserError(f"scancel: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


def _run(command: list[str]) -> str | None:
    """Returns a command's output, or None if it is missing or does not answer."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
