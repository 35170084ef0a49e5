"""What engines hold for a sweep: one small file a job under `.sweep/jobs`, for any launcher and `sweeps.status`.

Only engines whose jobs outlive the launcher (Slurm) leave such files. The engine is asked how its jobs stand; a run's
own files say what it has done.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from configs.documents import ordinary
from sweeps.launchers import squeue
from sweeps.launchers.squeue import Word
from sweeps.store.run_status import Standing
from training.run_directory.files import write_json

FOLDER = Path(".sweep") / "jobs"


@dataclass(frozen=True)
class Record:
    """A job that was handed to an engine: `id` as the engine names it, `digest` of what it was asked to do."""

    engine: str
    id: str
    arm: str
    seed: int
    digest: str
    submitted: str

    @property
    def key(self) -> str:
        """The run's folder below `runs/`."""
        return f"{self.arm}/seed{self.seed}"


def digest(asked: Mapping[str, Any]) -> str:
    """Returns a short name for what a job was asked to do; another config or other evaluations give another one."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
    """Returns every job that is noted; a damaged note counts as none."""
    found = []
    for path in sorted((directory / FOLDER).glob("*.json")):
        try:
            found.append(Record(**json.loads(ordinary(path).read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return found


def words(records: list[Record]) -> dict[str, Word]:
    """Returns what the engines say of jobs, by the run's key; a job that its engine no longer knows is left out."""
    said = squeue.states([record.id for record in records if record.engine == squeue.ENGINE])
    return {record.key: said[record.id] for record in records if record.id in said}


def told(run: Standing, record: Record, word: Word) -> Standing:
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
        if word.state in ("COMPLETED", squeue.GONE):
            return run
        return replace(run, status="failed", note="", error=f"{name}: {word.state}")
    return run


def overlay(directory: Path, board: Mapping[str, Standing]) -> dict[str, Standing]:
    """Returns how every run stands, with what the engines say of those that they hold."""
    records = [record for record in noted(directory) if record.key in board]
    said = words(records)
    by_key = {record.key: record for record in records}
    return {key: told(run, by_key[key], said[key]) if key in said else run for key, run in board.items()}
