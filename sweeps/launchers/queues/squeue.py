"""What Slurm says of jobs, by its own commands (`squeue`, `sacct`, `scancel`); works where no launcher is."""

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
LOST = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "TIMEOUT")  # the cluster's doing: the run goes on later
GONE = "GONE"  # our own word: Slurm answers, and knows of no such job
PATIENCE = 60.0  # seconds for one of Slurm's commands to answer
ID = re.compile(r"\d{1,10}(_\d{1,10})?", re.ASCII)  # a job, or a task of an array
# Which cluster is meant: every command gets these. Other variables would hide jobs from squeue and scancel
# (SQUEUE_STATES, SCANCEL_NAME), or describe the job that a launcher itself runs in.
CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT")
OURS = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SCONTROL", "SUBMITIT")


def job_state(state: str, reason: str = "", script: str = "") -> JobState:
    """Returns one of Slurm's states as what it means."""
    if state in WAITING:
        return JobState(state, reason, script, "waiting")
    if state in AT_WORK:
        return JobState(state, reason, script, "running")
    return JobState(state, reason, script, "over", silent=state in ("COMPLETED", GONE))


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of each of Slurm's commands, the same for all, so that all speak of one cluster.

    Raises:
        UserError: the variables name several clusters, whose jobs could have the same id.
    """
    kept = {name: value for name, value in env.items() if name in CLUSTER or not name.startswith(OURS)}
    if env.get("SBATCH_CLUSTERS"):  # sbatch prefers it to SLURM_CLUSTERS, the other commands do not know it
        kept["SLURM_CLUSTERS"] = env["SBATCH_CLUSTERS"]
    clusters = kept.get("SLURM_CLUSTERS", "")
    if "," in clusters or clusters.strip() == "all":
        raise UserError(f"SLURM_CLUSTERS={clusters}: must name one cluster")
    return kept


def queue() -> dict[str, JobState] | None:
    """Returns every job of this user that the controller knows, by id; None where it does not answer."""
    text = _run(["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r|%o"])
    return None if text is None else _parsed(text)


def states(ids: Sequence[str]) -> dict[str, JobState]:
    """Returns what Slurm says of jobs (`12` or `12_3`); nothing where it does not answer.

    `squeue` knows a job until some minutes after its end; from then on only `sacct` does, where the cluster has it. A
    task of an array that is cancelled before it began is GONE at once.
    """
    if not ids:
        return {}
    expected = set(ids)
    known = queue()
    if known is None:
        return {}
    results = {job: word for job, word in known.items() if job in expected}
    left = [job for job in ids if job not in results and ID.fullmatch(job)]
    for start in range(0, len(left), 500):  # a command line has its limits
        some = ",".join(left[start : start + 500])
        text = _run(["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State,Reason", f"--jobs={some}"])
        results |= {job: word for job, word in _parsed(text or "").items() if job in expected}
    return results | {job: job_state(GONE) for job in ids if job not in results}


def of_sweep(directory: Path, records: Sequence[Record]) -> dict[str, JobState]:
    """Returns what Slurm says of a sweep's jobs, by the run's key; nothing where it does not answer.

    A job whose script does not lie in the sweep's directory is not the sweep's, whatever a note says: it is GONE.
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
    """Tells whether a job runs a script that a launcher of this sweep has written."""
    return any((base / SUBMITTED) in Path(word.script).parents for base in (directory.absolute(), directory.resolve()))


def answers() -> bool:
    """Tells whether Slurm's controller answers."""
    return _run(["squeue", "--me", "--noheader"]) is not None


def _parsed(text: str) -> dict[str, JobState]:
    results = {}
    for line in text.splitlines():
        job, state, reason, script = [*line.split("|", 3), "", "", ""][:4]
        if ID.fullmatch(job) and state:
            # sacct writes `CANCELLED by 0`; squeue gives `None` as the reason of a job that has none.
            results[job] = job_state(state.split()[0], "" if reason in ("None", "Unknown") else reason, script)
    return results


def exit_code(job: str) -> str:
    """Returns how a job's process ended, in words; empty where Slurm does not say."""
    match = re.search(r"\bExitCode=(\d+):(\d+)", _run(["scontrol", "show", "job", job, "--oneliner"]) or "")
    if not match:
        return ""
    code, number = int(match[1]), int(match[2])
    # A shell, and srun, give 128 + the signal as the code of what a signal ended.
    killed = number or (code - 128 if code > 128 else 0)
    return f"killed by signal {killed}" if killed else f"exit code {code}"


def cancel(ids: Sequence[str]) -> None:
    """Has Slurm end jobs: those that wait at once, those at work after the time it gives them to save (KillWait).

    Raises:
        UserError: Slurm does not take it.
    """
    for start in range(0, len(ids), 500):
        command = ["scancel", *ids[start : start + 500]]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, env=environment(os.environ)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"scancel: {error}") from error
        # Jobs that have ended meanwhile are no mistake.
        if done.returncode and "Invalid job id" not in done.stderr and "already" not in done.stderr:
            raise UserError(f"scancel: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


def _run(command: list[str]) -> str | None:
    """Returns what a command prints, or None where it is not there or does not answer."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
