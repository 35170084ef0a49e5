"""The local launcher: persistent worker processes on this machine."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.execution import data_check, deadline, memory_check
from sweeps.execution.serve import serve
from sweeps.execution.worker import Job, Outcome, Place
from sweeps.launchers import resources
from sweeps.launchers.launcher import Built, Ended, Launcher
from sweeps.spec.sweep import Sweep
from sweeps.store.state import PRIVATE
from training.runtime import process as processes

SPAWN = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork


class LocalEngine:
    """A pool with one process per place. A process that dies is replaced when its place is next used."""

    name = "local"
    detached = False
    tick = 0.5

    def __init__(self, places: Sequence[Place]) -> None:
        self.workers = [_Worker(place) for place in places]

    def adopt(self, expected: Mapping[str, Job]) -> dict[int, Job]:
        """Returns nothing: workers end with their launcher."""
        return {}

    def queued(self, place: int) -> str:
        """Returns nothing: a worker starts at once."""
        return ""

    def withdraw(self) -> None:
        """Does nothing: a worker's job has started."""

    def free(self) -> list[int]:
        """Returns the places without a job."""
        return [i for i, worker in enumerate(self.workers) if worker.job is None]

    def start(self, place: int, job: Job) -> None:
        """Gives a free place a job."""
        self.workers[place].start(job)

    def ended(self, timeout: float) -> list[Ended]:
        """Waits until a job ends, at most `timeout` seconds; returns those that did."""
        busy = [worker for worker in self.workers if worker.job is not None]
        if not busy:
            time.sleep(timeout)
            return []
        multiprocessing.connection.wait([source for worker in busy for source in worker.sources()], timeout)
        results = [(i, worker.ended()) for i, worker in enumerate(self.workers) if worker.job is not None]
        return [Ended(i, *result) for i, result in results if result is not None]

    def stop(self) -> None:
        """Tells every busy worker to save its run and end."""
        for worker in self.workers:
            if worker.job is not None:
                worker.signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends every worker: idle ones by themselves, the others at once."""
        for worker in self.workers:
            worker.close()


class _Worker:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.job: Job | None = None
        self.process: Any = None
        self.connection: Any = None

    def start(self, job: Job) -> None:
        if self.process is None or not self.process.is_alive():
            self.close()
            self._launch()
        try:
            self.connection.send(job)
        except OSError:  # it died just now
            self.close()
            self._launch()
            self.connection.send(job)
        self.job = job

    def _launch(self) -> None:
        self.connection, theirs = SPAWN.Pipe()
        # Not daemonic: the data pipeline may start subprocesses.
        self.process = SPAWN.Process(
            target=serve, args=(theirs, self.place, os.getpid()), name=f"sweep-worker-{self.place.index}", daemon=False
        )
        self.process.start()
        theirs.close()  # so that the pipe ends when the worker does

    def sources(self) -> list[Any]:
        return [self.connection, self.process.sentinel]

    def ended(self) -> tuple[Job, Outcome | None, str] | None:
        """Returns (job, outcome, reason) if the job is over."""
        job = self.job
        assert job is not None
        outcome = None
        try:
            if self.connection.poll():
                outcome = self.connection.recv()
            elif self.process.is_alive():
                return None
        except (EOFError, OSError):
            pass
        self.job = None
        if outcome is not None:
            if outcome.status == "failed":
                self.close()  # a failed run may leave memory behind; the next one starts in a new process
            return job, outcome, ""
        self.process.join(10.0)
        reason = _died(self.process.exitcode)
        self.close()
        return job, None, reason

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def close(self) -> None:
        if self.process is None:
            return
        self.connection.close()  # an idle worker ends by this
        if self.job is None:
            self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self.process = self.connection = None


def _died(code: int | None) -> str:
    if code is None:
        return "its worker process closed the connection"
    if code == deadline.EXIT:
        return "timed out (--run-timeout), and did not save itself"
    return f"its worker process {processes.ended(code)}"


def _check(sweep: Sweep, directory: Path) -> None:
    """Refuses data paths of the arms that match nothing, and arms left to do that exceed this machine's memory."""
    data_check.check(sweep)
    memory_check.check(sweep, directory, resources.machine())


def _build(directory: Path, options: Mapping[str, Any], workers: int | None, runs: int) -> Built:
    here = resources.machine()
    slots = resources.places(here, workers, runs, directory / PRIVATE)
    threads = max(1, here.cores // len(slots))
    each = f", {threads} thread{'s' * (threads > 1)} each" if here.platform == "cpu" else ""
    words = f"{len(slots)} worker{'s' * (len(slots) > 1)} on {here.platform}{each}"
    return Built(LocalEngine(slots), words, resources.shared(here, len(slots)))


LOCAL = Launcher("local", _build, check=_check, packs=True)
