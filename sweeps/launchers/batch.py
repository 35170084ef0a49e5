"""The base of launchers whose jobs wait in a queue: Slurm's arrays, Kubernetes' indexed Jobs.

New jobs are collected and submitted together; a job ends with the outcome that it wrote, or with the queue's state.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.documents import ordinary
from sweeps.execution.worker import Job, Outcome
from sweeps.launchers.launcher import Ended
from sweeps.store import jobs
from sweeps.store.jobs import JobState

SETTLED = 3.0  # seconds after the end of a job before it counts as having left no result
LATE = 30.0  # the same for a job that ended successfully: a shared file system may show its result later
POLL = (1.0, 20.0)  # seconds between queries: after an event, and after a long time without one
STATUSES = ("done", "diverged", "preempted", "failed", "busy")  # of an outcome


@dataclass
class Held:
    """A job in the queue. `array` is the folder of one submission, `index` its position in it."""

    job: Job
    id: str
    array: str
    index: int = 0
    word: JobState | None = None
    since: float = 0.0  # when the queue first reported it as over


def outcome(path: Path) -> Outcome | None:
    """Returns a job's outcome from the file it wrote; None if there is none."""
    try:
        values = json.loads(ordinary(path).read_text(encoding="utf-8"))
        if values["status"] in STATUSES:
            return Outcome(values["status"], str(values["error"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        pass
    return None


def digest(job: Job) -> str:
    """Returns a hash of a job, to compare one in the queue with one in the sweep."""
    return jobs.digest({"config": job.config, "evals": job.evals, "timeout": job.timeout})


class BatchEngine:
    """Submits jobs together and follows them. A place is only a number here: the queue selects the nodes."""

    def __init__(self, directory: Path, most: int) -> None:
        """`most`: maximum jobs in the queue."""
        self.directory, self.most = directory, most
        self.new: dict[int, Job] = {}
        self.held: dict[int, Held] = {}
        self.gone: list[Ended] = []
        self.wait, self.last_query = POLL[0], 0.0

    def _submit(self) -> None:
        """Submits the new jobs, if there are any."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Queries the queue for the jobs' states, if it is time, and passes them to `_hear`."""
        raise NotImplementedError

    def _result(self, place: int, held: Held) -> Ended | None:
        """Returns the outcome that a job wrote, if it counts."""
        raise NotImplementedError

    def _end(self, place: int, held: Held) -> Ended | None:
        """Returns how a job without a result ended, if it did."""
        raise NotImplementedError

    def _cancel(self, ids: Sequence[str]) -> None:
        """Cancels jobs in the queue."""
        raise NotImplementedError

    def free(self) -> list[int]:
        """Returns the places without a job."""
        return [i for i in range(self.most) if i not in self.held and i not in self.new]

    def start(self, place: int, job: Job) -> None:
        """Keeps a job for the next submission."""
        self.new[place] = job

    def queued(self, place: int) -> str:
        """Returns the queue's description of a job that has not started."""
        held = self.held.get(place)
        if held is None or held.word is None:
            return "queued"
        reason = held.word.reason
        return (f"queued ({reason})" if reason else "queued") if held.word.waits else ""

    def ended(self, timeout: float) -> list[Ended]:
        """Submits new jobs, waits at most `timeout` seconds, and returns the jobs that ended."""
        self._submit()
        end = time.monotonic() + timeout
        while not (results := self._look()) and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
        if results:
            self.wait = POLL[0]
        return results

    def _look(self) -> list[Ended]:
        results, self.gone = self.gone, []
        self._ask()
        for place, held in list(self.held.items()):
            ended = self._result(place, held) or self._end(place, held)
            if ended is not None:
                del self.held[place]
                jobs.forget(self.directory, held.job.arm, held.job.seed)
                results.append(ended)
        return results

    def _due(self) -> bool:
        """Returns whether the queue should be queried again: less often the less happens."""
        return bool(self.held) and time.monotonic() - self.last_query >= self.wait

    def _hear(self, said: Mapping[str, JobState]) -> None:
        """Processes the queue's answer at `last_query`, {id: state}; a job without a state was not reported."""
        before = [held.word for held in self.held.values()]
        for held in self.held.values():
            word = said.get(held.id)
            if word is None:
                continue
            if not word.over:
                held.since = 0.0
            elif not held.since:
                held.since = self.last_query
            held.word = word
        changed = before != [held.word for held in self.held.values()]
        self.wait = POLL[0] if changed else min(POLL[1], self.wait * 1.5)

    def withdraw(self) -> None:
        """Withdraws the jobs that have not started."""
        self._drop_new()
        self._cancel([held.id for held in self.held.values() if held.word is None or held.word.waits])
        self.wait = POLL[0]

    def stop(self) -> None:
        """Cancels every job; running ones save themselves."""
        self._drop_new()
        self._cancel([held.id for held in self.held.values()])
        self.wait = POLL[0]

    def _drop_new(self) -> None:
        self.gone += [Ended(place, job, None, "not begun", "cancelled") for place, job in self.new.items()]
        self.new = {}
