"""Records of a sweep's queued jobs: one small file per job in `.sweep/jobs`, for any launcher and `sweeps.status`.

Only launchers whose jobs outlive them (Slurm) write such files. The cluster has the jobs' states; a run's own files
have its progress.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from configs.documents import ordinary
from sweeps.spec import names
from sweeps.store.run_status import RunState
from training.run_directory.files import write_json

FOLDER = Path(".sweep") / "jobs"
SUBMITTED = Path(".sweep") / "slurm"  # a folder for each queued array
ID = re.compile(
    r"[0-9A-Za-z][\w.\[\]-]{0,63}", re.ASCII
)  # of a job, for any cluster; a launcher has a stricter pattern
ARRAY = re.compile(r"[0-9a-f]{16}")  # the name of such a folder


@dataclass(frozen=True)
class Record:
    """A job that was submitted to a cluster.

    Attributes:
        id: the cluster's.
        digest: of its task.
        submitted: time, ISO 8601.
        array: the folder in SUBMITTED with its script, log and result; empty in a record of an earlier version.
    """

    engine: str
    id: str
    arm: str
    seed: int
    digest: str
    submitted: str
    array: str = ""

    @property
    def key(self) -> str:
        """The run's folder below `runs/`."""
        return f"{self.arm}/seed{self.seed}"


@dataclass(frozen=True)
class JobState:
    """A cluster's state of a job.

    Attributes:
        state: in the cluster's own term.
        reason: as reported by the cluster.
        script: of the job, if known.
        phase: waiting (not started, or to be restarted), running, or over (will not be restarted).
        silent: for a job that is over: the cluster does not say how it ended, so the run's own files decide.
    """

    state: str
    reason: str = ""
    script: str = ""
    phase: Literal["waiting", "running", "over"] = "over"
    silent: bool = False

    @property
    def waits(self) -> bool:
        """It has not started, or is to be restarted."""
        return self.phase == "waiting"

    @property
    def runs(self) -> bool:
        """It is running."""
        return self.phase == "running"

    @property
    def over(self) -> bool:
        """It has ended, and the cluster will not restart it."""
        return self.phase == "over"


def digest(requested: Mapping[str, Any]) -> str:
    """Returns a short hash of a job's task; another config or other evaluations give another one."""
    return hashlib.sha256(json.dumps(requested, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _path(directory: Path, arm: str, seed: int) -> Path:
    return directory / FOLDER / f"{arm}.seed{seed}.json"


def note(directory: Path, record: Record) -> None:
    """Records that a cluster has a job."""
    path = _path(directory, record.arm, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(record))


def forget(directory: Path, arm: str, seed: int) -> None:
    """Removes the record of a job that is over."""
    _path(directory, arm, seed).unlink(missing_ok=True)


def noted(directory: Path) -> list[Record]:
    """Returns every recorded job; ignores files that `note` would not write, or under another name.

    The folder may come from elsewhere: the fields become paths and arguments of Slurm's commands.
    """
    results = []
    for path in sorted((directory / FOLDER).glob("*.json")):
        record = read(path)
        if record is not None and path == _path(directory, record.arm, record.seed):
            results.append(record)
    return results


def read(path: Path) -> Record | None:
    """Returns a record; None if the file is not one."""
    try:
        return checked(json.loads(ordinary(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def checked(values: Mapping[str, Any]) -> Record | None:
    """Returns a record from a file's values; None if one of them is not as `note` writes it.

    Raises:
        TypeError: they are not an object, or have other keys.
    """
    record = Record(**values)
    texts = [getattr(record, field.name) for field in fields(Record) if field.type is str]
    valid = (
        all(isinstance(text, str) for text in texts)
        and type(record.seed) is int
        and names.SAFE.fullmatch(record.engine)
        and ID.fullmatch(record.id)
        and names.SAFE.fullmatch(record.arm)
        and (not record.array or ARRAY.fullmatch(record.array))
    )
    return record if valid else None


def merge(run: RunState, record: Record, word: JobState) -> RunState:
    """Returns a run's state, including the cluster's state of its job.

    The files decide what is done. A job that waits makes its run wait; one that the cluster ended shows as failed
    although the run's files, which nobody could update any more, say `running`.
    """
    name = f"{record.engine} job {record.id}"
    if run.status in ("done", "diverged") and not (run.status == "done" and run.missing):
        return run
    if word.waits:
        return replace(run, note=f"queued: {name}{f' ({word.reason})' if word.reason else ''}", error="")
    if word.runs:
        if run.status == "preempted" and run.note:  # no sign of activity in the files, but the cluster knows better
            return replace(run, status="running", note=name)
        return replace(run, note=run.note or name) if run.status in ("running", "waiting") else run
    if run.status == "running" or (run.status == "preempted" and run.note) or run.status == "waiting":
        if word.silent:
            return run
        return replace(run, status="failed", note="", error=f"{name}: {word.state}")
    return run
