"""The interface of a launcher: its options, the engine it builds, and how its jobs are queried and cancelled.

A launcher is one file with one `Launcher`, and one line in `registry.py`. Nothing else names it: the command line,
`sweeps.status`, `sweeps.cancel` and the loop use the object.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from configs.errors import UserError
from sweeps.execution.worker import Job, Outcome
from sweeps.spec.sweep import Sweep
from sweeps.store.jobs import JobState, Record

SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Ended:
    """A job that ended: with an outcome, or (None) because its process died, with a `reason`.

    `how` qualifies a job without an outcome: `died` (the run failed), `lost` (by the cluster: the run is resumed) or
    `cancelled` (on purpose: the run is left).
    """

    place: int
    job: Job
    outcome: Outcome | None
    reason: str = ""
    how: str = "died"


class Engine(Protocol):
    """Runs jobs."""

    name: str
    detached: bool  # its jobs outlive the launcher
    tick: float  # seconds between checks of the runs

    def adopt(self, expected: Mapping[str, Job]) -> Mapping[int, Job]:
        """Attaches to jobs that an earlier launcher submitted and that are not over; returns them by place."""

    def free(self) -> list[int]:
        """Returns the places that could take a job now."""

    def start(self, place: int, job: Job) -> None:
        """Starts a job at a free place."""

    def queued(self, place: int) -> str:
        """Returns what delays the job at a place, such as `queued (Priority)`; empty if nothing does."""

    def ended(self, timeout: float) -> list[Ended]:
        """Waits for jobs to end, at most `timeout` seconds; returns those that did."""

    def withdraw(self) -> None:
        """Withdraws the jobs that have not started, which end as cancelled."""

    def stop(self) -> None:
        """Tells running jobs to save and end."""

    def close(self) -> None:
        """Ends everything at once, except jobs that outlive the launcher."""


@dataclass(frozen=True)
class Queue:
    """Jobs that outlive their launcher and can be queried from anywhere.

    Attributes:
        title: the cluster's name in messages.
        id: pattern of its job ids. Records with other ids, which may come from elsewhere, are ignored.
        states: from (the sweep's directory, its jobs) to the cluster's states, by the run's key; empty if it does not
            answer. A record may come from elsewhere: a job that is not the sweep's is over and silent.
        cancel: ids that `states` has confirmed: waiting jobs end at once, running ones are saved first.
    """

    title: str
    id: re.Pattern[str]
    states: Callable[[Path, Sequence[Record]], dict[str, JobState]]
    cancel: Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Option:
    """An option of `sweeps.launch`. Launchers that share an option share the object."""

    metavar: str
    help: str
    repeated: bool = False


NTASKS = Option("N", "processes that train a run together, over config.mesh (docs/devices.md)")
CPUS = Option("N", "processors per run; with --ntasks, each of its processes")
GPUS = Option("N", "GPUs per run; with --ntasks, on each node")
MEMORY = Option("SIZE", "memory per run, such as 16G")


@dataclass(frozen=True)
class Built:
    """An engine; `words` describe where it runs jobs; `exclusive`: timed evaluations need the whole machine."""

    engine: Engine
    words: str
    exclusive: bool


def _any(sweep: Sweep, directory: Path) -> None:
    """Accepts every sweep."""


@dataclass(frozen=True)
class Launcher:
    """Where a sweep's runs run.

    Attributes:
        name: value of --launcher.
        build: from (the sweep's directory, the given options, --workers, the number of jobs) to the engine.

            Raises UserError: the launcher is unavailable, or an option has an invalid value.
        options: by name, without dashes.
        check: refuses a sweep that cannot run there, before anything is written.
        packs: whether a worker may train several runs in one program (--pack).
        queue: for a launcher whose jobs outlive it.
        preview: from the arguments of `build` to the text of the submission, checked; --manifest=FILE writes it.
    """

    name: str
    build: Callable[[Path, Mapping[str, Any], int | None, int], Built]
    options: Mapping[str, Option] = field(default_factory=dict)
    check: Callable[[Sweep, Path], None] = _any
    packs: bool = False
    queue: Queue | None = None
    preview: Callable[[Path, Mapping[str, Any], int | None, int], str] | None = None


def count(options: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    """Returns an option that is a whole number; None: it is not given."""
    text = options.get(name)
    if text is None:
        return None
    if not str(text).isdigit() or int(text) < least:
        raise UserError(f"--{name}={text}: must be a whole number, {least} or more")
    return int(text)


def exclusive(gpus: int | None, workers: int | None) -> bool:
    """Returns whether runs must not share a machine, as with devices; on processors they may."""
    return not gpus and workers != 1


def pairs(options: Mapping[str, Any], name: str, option: Option, bare: bool = False) -> dict[str, Any]:
    """Returns a repeated option KEY=VALUE; `bare`: a key without a value is True."""
    results: dict[str, Any] = {}
    for text in options.get(name, []):
        key, separator, value = text.partition("=")
        key = key.strip().lstrip("-")
        if not key or not (separator or bare):
            raise UserError(f"--{name}={text}: must be {option.metavar}")
        results[key] = value if separator else True
    return results


def size(text: str) -> int:
    """Returns the bytes of --memory."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in SIZES else (text, "M")
    if not number.isdigit() or int(number) < 1:
        raise UserError(f"--memory={text}: must be a size, such as 512M or 16G")
    return int(number) * SIZES[unit]
