"""The runs of a sweep that wait for a worker: those that can start, and those that wait for other runs.

Every operation takes constant time in the number of waiting runs, so that a sweep's cost is linear in its runs. A run
that waits for others is checked again only when one of these has ended.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from sweeps.execution.worker import Job

Arm = tuple[str, str]  # study and name


class Waiting:
    """Jobs in the order of their arms, with the seeds of an arm adjacent."""

    def __init__(
        self, jobs: Iterable[Job], *, needs: Callable[[Job], Sequence[str]], ready: Callable[[Job], bool]
    ) -> None:
        """Takes the waiting jobs.

        Args:
            jobs: in launch order.
            needs: the keys of the runs whose end may allow a job to start.
            ready: whether it can start now.
        """
        self._needs, self._is_ready = needs, ready
        self._ready: dict[Arm, dict[str, Job]] = {}
        self._blocked: dict[str, Job] = {}
        self._waiting_for: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for job in jobs:
            self.add(job)

    def __bool__(self) -> bool:
        """Whether a job can start."""
        return bool(self._ready)

    def ready(self) -> Iterator[Job]:
        """Yields the jobs that can start."""
        for jobs in self._ready.values():
            yield from jobs.values()

    def add(self, job: Job) -> None:
        """Puts a job behind the others of its arm, and a new arm behind the other arms."""
        if self._is_ready(job):
            self._ready.setdefault((job.study, job.arm), {})[job.key] = job
            return
        self._blocked[job.key] = job
        for key in self._needs(job):
            self._waiting_for[key][job.key] = None

    def take(self, job: Job) -> None:
        """Removes a job from the queue."""
        jobs = self._ready[job.study, job.arm]
        del jobs[job.key]
        if not jobs:
            del self._ready[job.study, job.arm]

    def ended(self, key: str) -> None:
        """Checks the jobs that waited for a run again."""
        for other in list(self._waiting_for.pop(key, ())):
            job = self._blocked.pop(other, None)
            if job is not None:
                self.add(job)

    def next(self, last: Arm | None, elsewhere: set[Arm]) -> Job:
        """Returns the job that a place should take next, without removing it.

        The seeds of an arm go to one worker, which has compiled its programs: first another seed of the place's last
        arm, then an arm that no other worker runs, then the next one.

        Args:
            last: the place's last arm.
            elsewhere: arms that other workers run.
        """
        arm = last if last in self._ready else next((arm for arm in self._ready if arm not in elsewhere), None)
        jobs = self._ready[next(iter(self._ready)) if arm is None else arm]
        return next(iter(jobs.values()))
