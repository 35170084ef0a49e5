"""What engines hold for a sweep: one small file a job under `.sweep/jobs`, for any launcher and `sweeps.status`.

Only engines whose jobs outlive the launcher (Slurm) leave such files. The engine is asked how its jobs stand; a run's
own files say what it has done.
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
SUBMITTED = Path(".sweep") / "slurm"  # a folder for each array that was queued
ID = re.compile(r"[0-9A-Za-z][\w.\[\]-]{0,63}", re.ASCII)  # of a job, for any cluster; a launcher knows its own form
ARRAY = re.compile(r"[0-9a-f]{16}")  # the name of such a folder


@dataclass(frozen=True)
class Record:
    """A job that was handed to an engine.

    Attributes:
        id: as the engine names it.
        digest: of what it was asked to do.
        submitted: when, ISO 8601.
        array: the folder in SUBMITTED with its script, log and result; empty in a note of an earlier version.
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
    """What a cluster says of a job.

    Attributes:
        state: in the cluster's own word.
        reason: that it gives.
        script: that it runs, where known.
        phase: waiting (it has not begun, or is to begin again), running, or over (it will not be taken up again).
        silent: of a job that is over: the cluster does not say how it ended, and the run's own files must.
    """

    state: str
    reason: str = ""
    script: str = ""
    phase: Literal["waiting", "running", "over"] = "over"
    silent: bool = False

    @property
    def waits(self) -> bool:
        """It has not begun, or is to begin again."""
        return self.phase == "waiting"

    @property
    def runs(self) -> bool:
        """It is running."""
        return self.phase == "running"

    @property
    def over(self) -> bool:
        """It has ended, and the cluster will not take it up again."""
        return self.phase == "over"


def digest(requested: Mapping[str, Any]) -> str:
    """Returns a short name for what a job was asked to do; another config or other evaluations give another one."""
    return hashlib.sha256(json.dumps(requested, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _path(directory: Path, arm: str, seed: int) -> Path:
    return directory / FOLDER / f"{arm}.seed{seed}.json"


def note(directory: Path, record: Record) -> None:
    """Writes that an engine has a job."""
    path = _path(directory, record.arm, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(record))


def forget(directory: Path, arm: str, seed: int) -> None:
    """Removes the note of a job that is over."""
    _path(directory, arm, seed).unlink(missing_ok=True)


def noted(directory: Path) -> list[Record]:
    """Returns every job that is noted; what is not a note as `note` writes it, under the name it gives, is ignored.

    The folder may have come from elsewhere: the fields become paths and arguments of Slurm's commands.
    """
    results = []
    for path in sorted((directory / FOLDER).glob("*.json")):
        record = read(path)
        if record is not None and path == _path(directory, record.arm, record.seed):
            results.append(record)
    return results


def read(path: Path) -> Record | None:
    """Returns a note; None where the file is none."""
    try:
        return checked(json.loads(ordinary(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def checked(values: Mapping[str, Any]) -> Record | None:
    """Returns a note's values as a record; None where one of them is not as `note` writes it.

    Raises:
        TypeError: they are no object, or have other keys.
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
    """Returns how a run stands, given what the engine says of its job.

    The files have the last word on what is done. A job that waits makes its run wait; one that the engine ended shows
    as failed though the run's files, which nobody could write any more, say `running`.
    """
    name = f"{record.engine} job {record.id}"
    if run.status in ("done", "diverged") and not (run.status == "done" and run.missing):
        return run
    if word.waits:
        return replace(run, note=f"queued: {name}{f' ({word.reason})' if word.reason else ''}", error="")
    if word.runs:
        if run.status == "preempted" and run.note:  # no sign of life in the files, but the engine knows better
            return replace(run, status="running", note=name)
        return replace(run, note=run.note or name) if run.status in ("running", "waiting") else run
    if run.status == "running" or (run.status == "preempted" and run.note) or run.status == "waiting":
        if word.silent:
            return run
        return replace(run, status="failed", note="", error=f"{name}: {word.state}")
    return run
