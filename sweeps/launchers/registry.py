"""The launchers, one line each; queries of jobs that outlive their launcher."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.errors import UserError, nearest
from sweeps.launchers.kubernetes import KUBERNETES
from sweeps.launchers.launcher import Launcher, Queue
from sweeps.launchers.local import LOCAL
from sweeps.launchers.ray import RAY
from sweeps.launchers.slurm import SLURM
from sweeps.store import jobs
from sweeps.store.jobs import JobState, Record
from sweeps.store.run_status import RunState

LAUNCHERS: dict[str, Launcher] = {launcher.name: launcher for launcher in (LOCAL, SLURM, RAY, KUBERNETES)}


def launcher(name: str) -> Launcher:
    """Returns a launcher by name.

    Raises:
        UserError: there is none with that name.
    """
    if name not in LAUNCHERS:
        allowed = " or ".join(LAUNCHERS)
        raise UserError(f"--launcher={name}: must be {allowed}{nearest(name, LAUNCHERS)}")
    return LAUNCHERS[name]


def noted(directory: Path) -> list[Record]:
    """Returns the jobs recorded in a sweep's directory whose launcher is known."""
    queues = {name: launcher.queue for name, launcher in LAUNCHERS.items() if launcher.queue is not None}
    results = [record for record in jobs.noted(directory) if record.engine in queues]
    return [record for record in results if queues[record.engine].id.fullmatch(record.id)]


def _queues(records: Sequence[Record]) -> list[tuple[Queue, list[Record]]]:
    """Returns each queue with its recorded jobs."""
    results = []
    for name, known in LAUNCHERS.items():
        if known.queue is not None and (own := [record for record in records if record.engine == name]):
            results.append((known.queue, own))
    return results


def states(directory: Path, records: Sequence[Record]) -> dict[str, JobState]:
    """Returns the clusters' states of a sweep's jobs, by the run's key; none for clusters that do not answer."""
    results: dict[str, JobState] = {}
    for queue, own in _queues(records):
        results |= queue.states(directory, own)
    return results


def overlay(directory: Path, board: Mapping[str, RunState]) -> tuple[dict[str, RunState], str]:
    """Returns the state of every run, including the clusters' states of its jobs.

    And a message if a cluster that has jobs does not answer.
    """
    records = [record for record in noted(directory) if record.key in board]
    known, lines = dict(board), []
    for queue, own in _queues(records):
        said = queue.states(directory, own)
        known |= {r.key: jobs.merge(board[r.key], r, said[r.key]) for r in own if r.key in said}
        if not said:
            many = len(own) > 1
            lines.append(
                f"{queue.title} does not answer: {len(own)} run{'s' * many} given to it "
                f"{'are' if many else 'is'} shown by the state of their files"
            )
    return known, "; ".join(lines)


def cancel(records: Sequence[Record]) -> None:
    """Cancels jobs in their clusters.

    Raises:
        UserError: a cluster refuses.
    """
    for queue, own in _queues(records):
        queue.cancel([record.id for record in own])
