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
from typing import Any

from configs.documents import ordinary
from sweeps.launchers import squeue
from sweeps.launchers.squeue import Word
from sweeps.spec import names
from sweeps.store.run_status import Standing
from training.run_directory.files import write_json

FOLDER = Path(".sweep") / "jobs"
SUBMITTED = Path(".sweep") / "slurm"  # a folder for each array that was queued
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
    """Returns every job that is noted; what is not a note as `note` writes it, under the name it gives, is ignored.

    The folder may have come from elsewhere: the fields become paths and arguments of Slurm's commands.
    """
    found = []
    for path in sorted((directory / FOLDER).glob("*.json")):
        record = read(path)
        if record is not None and path == _path(directory, record.arm, record.seed):
            found.append(record)
    return found


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
        and record.engine == squeue.ENGINE
        and squeue.ID.fullmatch(record.id)
        and names.SAFE.fullmatch(record.arm)
        and (not record.array or ARRAY.fullmatch(record.array))
    )
    return record if valid else None


def words(directory: Path, records: list[Record]) -> dict[str, Word]:
    """Returns what the engines say of a sweep's jobs, by the run's key; nothing where they do not answer.

    A job whose script does not lie in the sweep's directory is not the sweep's, whatever a note says: it is GONE.
    """
    said = squeue.states([record.id for record in records if record.engine == squeue.ENGINE])
    found = {}
    for record in records:
        word = said.get(record.id)
        if word is not None:
            alien = not word.over and not belongs(directory, word)
            found[record.key] = Word(squeue.GONE) if alien else word
    return found


def belongs(directory: Path, word: Word) -> bool:
    """Tells whether a job runs a script that a launcher of this sweep has written."""
    return any((base / SUBMITTED) in Path(word.script).parents for base in (directory.absolute(), directory.resolve()))


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


def overlay(directory: Path, board: Mapping[str, Standing]) -> tuple[dict[str, Standing], str]:
    """Returns how every run stands, with what the engines say of those that they hold.

    And a line that says so where Slurm, which has jobs, does not answer.
    """
    records = [record for record in noted(directory) if record.key in board]
    said = words(directory, records)
    by_key = {record.key: record for record in records}
    silent = len(records) if records and not said else 0
    line = (
        f"Slurm does not answer: {silent} run{'s' * (silent > 1)} that it was given "
        f"{'are' if silent > 1 else 'is'} shown as the files say"
    )
    known = {key: told(run, by_key[key], said[key]) if key in said else run for key, run in board.items()}
    return known, line if silent else ""
