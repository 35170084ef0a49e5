"""What engines share whose jobs wait in a queue of their own: Slurm's arrays, Kubernetes' indexed Jobs.

New jobs are kept and submitted together; a job ends by the outcome that it wrote, or by what the queue says of it.
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

SETTLED = 3.0  # seconds between the end of a job and the belief that it left no result
LATE = 30.0  # the same for a job that seems to have ended well: a shared file system may show its result later
POLL = (1.0, 20.0)  # seconds between questions: after something happened, and when nothing did for long
STATUSES = ("done", "diverged", "preempted", "failed", "busy")  # of an outcome


@dataclass
class Held:
    """A job in the queue. `array` is the folder of what was submitted together, `index` its place in that."""

    job: Job
    id: str
    array: str
    index: int = 0
    word: JobState | None = None
    since: float = 0.0  # when the queue first said that it is over


def outcome(path: Path) -> Outcome | None:
    """Returns how a job says that it ended, of the file it wrote; None where it has not."""
    try:
        values = json.loads(ordinary(path).read_text(encoding="utf-8"))
        if values["status"] in STATUSES:
            return Outcome(values["status"], str(values["error"]))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        pass
    return None


def digest(job: Job) -> str:
    """Returns what a job is, so that one in the queue can be compared with one that is asked for."""
    return jobs.digest({"config": job.config, "evals": job.evals, "timeout": job.timeout})


class BatchEngine:
    """Submits jobs together and follows them. A place is no more than a number here: the queue finds the nodes."""

    def __init__(self, directory: Path, most: int) -> None:
        """`most`: jobs that are in the queue at once."""
        self.directory, self.most = directory, most
        self.new: dict[int, Job] = {}
        self.held: dict[int, Held] = {}
        self.gone: list[Ended] = []
        self.wait, self.last_query = POLL[0], 0.0

    def _submit(self) -> None:
        """Submits the new jobs, if there are any."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Asks the queue how the jobs stand, if it is time, and passes the answers to `_hear`."""
        raise NotImplementedError

    def _result(self, place: int, held: Held) -> Ended | None:
        """Returns the outcome that a job wrote, if it counts."""
        raise NotImplementedError

    def _end(self, place: int, held: Held) -> Ended | None:
        """Returns how a job ended that left no result, if it did."""
        raise NotImplementedError

    def _cancel(self, ids: Sequence[str]) -> None:
        """Has the queue end jobs, or forget those that wait."""
        raise NotImplementedError

    def free(self) -> list[int]:
        """Returns the places that have no job."""
        return [i for i in range(self.most) if i not in self.held and i not in self.new]

    def start(self, place: int, job: Job) -> None:
        """Keeps a job for the next submission."""
        self.new[place] = job

    def queued(self, place: int) -> str:
        """Returns what the queue says of a job that has not begun."""
        held = self.held.get(place)
        if held is None or held.word is None:
            return "queued"
        reason = held.word.reason
        return (f"queued ({reason})" if reason else "queued") if held.word.waits else ""

    def ended(self, timeout: float) -> list[Ended]:
        """Submits what is new, waits `timeout` seconds at most, and returns the jobs that ended."""
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
        """Tells whether the queue is to be asked again: the more seldom, the less happens."""
        return bool(self.held) and time.monotonic() - self.last_query >= self.wait

    def _hear(self, said: Mapping[str, JobState]) -> None:
        """Takes what the queue said at `last_query`, {id: state}; a job without one was not answered for."""
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
        """Takes back what has not begun."""
        self._drop_new()
        self._cancel([held.id for held in self.held.values() if held.word is None or held.word.waits])
        self.wait = POLL[0]

    def stop(self) -> None:
        """Has the queue end every job; those at work save themselves."""
        self._drop_new()
        self._cancel([held.id for held in self.held.values()])
        self.wait = POLL[0]

    def _drop_new(self) -> None:
        self.gone += [Ended(place, job, None, "not begun", "cancelled") for place, job in self.new.items()]
        self.new = {}
