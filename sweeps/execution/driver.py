"""The launcher's loop: what is left to do, where it runs next, and how it ended. The same for every launcher."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from configs import commands, interrupt
from configs.evaluations import EVALUATIONS
from sweeps.execution import packs
from sweeps.execution.policy import RESUMPTIONS, Policy
from sweeps.execution.waiting import Waiting
from sweeps.execution.worker import EVALUATE, TOGETHER, TRAIN, Job, record_eval_error
from sweeps.launchers import registry
from sweeps.launchers.launcher import Ended, Engine
from sweeps.spec import chains, select
from sweeps.spec.sweep import Run, Sweep
from sweeps.store import jobs, run_status, state
from sweeps.store.run_status import RunState, now
from sweeps.store.summary import Summary

TIMED = tuple(name for name, evaluation in EVALUATIONS.items() if evaluation.timed)
GRACE = 180.0  # seconds that runs have to save themselves


class Display(Protocol):
    """Receives the launcher's messages."""

    def update(self, board: dict[str, RunState], phases: dict[str, str], changed: Collection[str]) -> None:
        """Shows the state of every run; `phases` describes what running ones are doing.

        `changed` has the runs that were running or changed since the last call.
        """

    def say(self, line: str) -> None:
        """Prints one line."""


@dataclass(frozen=True)
class Functions:
    """The functions that workers call, as `module:function`; tests replace them."""

    train: str = TRAIN
    evaluate: str = EVALUATE
    together: str = TOGETHER


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collects the signals that ask the launcher to end."""
    caught: list[int] = []

    def catch(number: int, _: Any) -> None:
        caught.append(number)

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [
        number for number in map(signal.Signals.__getitem__, names) if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, catch) for number in numbers}
    caught += interrupt.answered()[:1]
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Driver:
    """One launch of a sweep: runs what is left, keeps the files consistent, updates the display."""

    def __init__(
        self,
        directory: Path,
        sweep: Sweep,
        engine: Engine,
        display: Display,
        *,
        functions: Functions | None = None,
        exclusive: bool = False,
        policy: Policy | None = None,
        pack: int = 1,
    ) -> None:
        """`exclusive`: timed evaluations must have the machine for themselves."""
        self.pack = pack  # runs that a worker may train in one program
        self.directory, self.engine, self.display = directory, engine, display
        self.functions, self.policy = functions or Functions(), policy or Policy()
        self.sweep, self.announced = sweep, set[str]()
        self.runs = {run.key: run for run in sweep.runs()}
        self.board = {key: self._read(run) for key, run in self.runs.items()}
        self.changed = set(self.board)  # runs whose entry on the board has not been displayed
        self.last: dict[int, tuple[str, str]] = {}  # place -> the arm whose programs its worker has compiled
        self.active: dict[int, Job] = {}
        self.resumed: Counter[str] = Counter()
        self.lost: dict[str, str] = {}  # why a run was last lost or stopped
        self.tried: Counter[str] = Counter()
        self.summary = Summary()
        self.stopping = self.halted = False
        self.exclusive = exclusive
        self.written = state.Written(directory)
        expected = [self._job(run, timed=not exclusive) for run in self.runs.values()]
        self._take_over({job.key: job for job in expected if job is not None})

    def _waiting(self, expected: Iterable[Job]) -> Waiting:
        return Waiting(expected, needs=self._needs, ready=self._is_ready)

    def _take_over(self, expected: dict[str, Job]) -> None:
        """Leaves runs alone that a queue already has: this launcher's jobs continue, others are reported."""
        self.active.update(self.engine.adopt(_Bound(expected, self._bound)))
        taken = {job.key for job in self.active.values()}
        records = [record for record in registry.noted(self.directory) if record.key not in taken]
        said = registry.states(self.directory, records)
        for record in records:
            word = said.get(record.key)  # None: Slurm cannot be queried here
            if word is not None and word.over:
                jobs.forget(self.directory, record.arm, record.seed)
            elif word is not None and record.key in expected:
                taken.add(record.key)
                self.summary.busy[record.key] = (
                    f"{record.engine} has it as job {record.id} ({word.state}); "
                    f"{commands.spelled('sweeps.cancel')} {self.directory} withdraws it"
                )
        self.waiting = self._waiting(job for key, job in expected.items() if key not in taken)

    def _read(self, run: Run) -> RunState:
        workdir = state.run_dir(self.directory, run.arm, run.seed)
        return run_status.read(workdir, run.evals, state.total_steps(run.base), run.base.budget.amount)

    def _job(self, run: Run, *, timed: bool) -> Job | None:
        """Returns what is left to do for a run, or None. Failed evaluations are retried.

        Results of a run that is not done yet would not be of the finished run.
        """
        current = self.board[run.key]
        if current.status == "diverged":
            return None
        again = {*current.missing, *current.eval_errors} if current.status == "done" else {*run.evals}
        left = [name for name in run.evals if name in again]
        evals = tuple(name for name in left if timed or name not in TIMED)
        if current.status == "done" and not evals:
            return None
        return Job(
            str(self.directory), run.study, run.arm, run.seed, {}, evals,  # the config is filled in at the start
            self.functions.train, self.functions.evaluate, self.policy.timeout, self.functions.together,
        )  # fmt: skip

    def _needs(self, job: Job) -> list[str]:
        """Returns the runs that a job may have to wait for: the one it continues, and those that select its field."""
        run = self.runs[job.key]
        before = chains.parent(run)
        return [*([before] if before else []), *(run.select.keys(run.arm) if run.select else [])]

    def _is_ready(self, job: Job) -> bool:
        """Returns whether a job could start now: a run that continues another starts when that one is done."""
        run = self.runs[job.key]
        before = chains.parent(run)
        begun = not before or self.board[job.key].status != "waiting" or self.board[before].status == "done"
        if run.select is None:
            return begun
        return begun and select.ready(run, self.board) and not select.unrunnable(self.directory, run)

    def _timed_jobs(self) -> list[Job]:
        """Returns the remaining timed evaluations, which run alone; what failed in this launch is not retried."""
        done = [run for run in self.runs.values() if self.board[run.key].status == "done"]
        jobs = [job for run in done if (job := self._job(run, timed=True)) is not None]
        timed = [replace(job, evals=tuple(name for name in job.evals if name in TIMED)) for job in jobs]
        return [job for job in timed if job.evals]

    def drive(self, caught: list[int]) -> Summary:
        """Runs everything that is left; `caught` collects the signals that end it early."""
        self._loop(caught)
        if self.exclusive and not caught and not self.halted:
            self.waiting = self._waiting(self._timed_jobs())
            self._loop(caught, most=1)
        if caught:
            self._stop(caught)
            self.summary.stopped_by = caught[0]
        self._sum_up(bool(caught))
        return self.summary

    def _loop(self, caught: list[int], most: int | None = None) -> None:
        while (self.active or (self.waiting and not self.halted)) and not caught:
            self._dispatch(most)
            self._show()
            for ended in self.engine.ended(self.engine.tick):
                self._settle(ended)
            self._look_at_sweep_json()
            if state.cancelled(self.directory):
                self.summary.cancelled = True
                caught.append(signal.SIGTERM)
        self._show()

    def _look_at_sweep_json(self) -> None:
        """Starts no more runs once sweep.json was replaced: the sweep's content is then unknown."""
        if self.summary.replaced or not self.written.replaced():
            return
        self.summary.replaced = self.halted = True
        self.display.say(
            f"{self.directory / 'sweep.json'} was replaced by another process: no more runs start, running ones finish"
        )
        self.engine.withdraw()

    def _dispatch(self, most: int | None) -> None:
        for place in self.engine.free():
            if self.halted or not self.waiting or (most is not None and len(self.active) >= most):
                return
            elsewhere = {arm for other, arm in self.last.items() if other != place and other in self.active}
            if most == 1:
                place = self._home(self.waiting.next(None, set()), place)
            job = self.waiting.next(self.last.get(place), elsewhere)
            self.waiting.take(job)
            job = self._chosen(job)
            for other, bound in packs.companions(job, self.waiting.ready(), self.pack - 1, self._chosen):
                self.waiting.take(other)
                job = replace(job, companions=(*job.companions, bound))
            self.engine.start(place, job)
            self.active[place] = job
            self.last[place] = (job.study, job.arm)

    def _chosen(self, job: Job) -> Job:
        """Returns the job with its config, with its arm's selected value, which is recorded in sweep.json."""
        run = self.runs[job.key]
        if run.select is not None and run.arm not in self.announced:
            state.record(self.directory, self.sweep, now())
            self.written.take()
            line = dict(select.summary(self.directory, self.sweep))[run.arm]
            self.display.say(line)
            self.announced.add(run.arm)
        return self._bound(job)

    def _bound(self, job: Job) -> Job:
        run = self.runs[job.key]
        decided = self._is_ready(job) or run.select is None
        config = select.decided(self.directory, run) if decided else run.config
        return replace(job, config=state.bound(self.directory, config, job.workdir))

    def _put(self, key: str, current: RunState) -> None:
        """Sets a run's state, and checks the runs that wait for it."""
        if current == self.board[key]:
            return
        self.board[key] = current
        self.changed.add(key)
        self.waiting.ended(key)

    def _home(self, job: Job, otherwise: int) -> int:
        """Returns the free place whose worker has the job's programs compiled, if there is one."""
        homes = [place for place, arm in self.last.items() if arm == (job.study, job.arm)]
        return next((place for place in homes if place in self.engine.free()), otherwise)

    def _settle(self, ended: Ended, stopping: bool = False) -> None:
        """Updates a run's files with how it ended, and resumes it if appropriate."""
        others = ended.outcome.others if ended.outcome else (None,) * len(ended.job.companions)
        for other, outcome in zip(ended.job.companions, others, strict=True):
            self._settle(Ended(ended.place, other, outcome, ended.reason, ended.how), stopping)
        job = replace(ended.job, companions=())
        self.active.pop(ended.place, None)
        run = self.runs[job.key]
        status = ended.outcome.status if ended.outcome else ended.how
        if status in ("died", "failed"):
            self.last.pop(ended.place, None)
        if status == "died":
            self._died(job, ended.reason, stopping)
        elif status in ("lost", "cancelled"):
            self._left(job, ended.reason)
        self._put(job.key, self._read(run))
        if stopping:
            return
        if status == "busy":
            self.summary.busy[job.key] = ended.outcome.error if ended.outcome else ""
        elif status == "cancelled":
            if not self.halted:
                self.summary.busy[job.key] = ended.reason
        elif status in ("preempted", "lost"):
            self.resumed[job.key] += 1
            self.lost[job.key] = ended.reason
            if self.resumed[job.key] <= RESUMPTIONS:
                self.waiting.add(job)
        else:
            self._again(job)

    def _again(self, job: Job) -> None:
        """Retries a run whose training or evaluation failed, as often as the policy allows, or starts no more."""
        current = self.board[job.key]
        failed = current.status == "failed" or any(name in current.eval_errors for name in job.evals)
        if not failed:
            return
        if self.tried[job.key] < self.policy.retries and not run_status.missing_file(job.workdir).exists():
            self.tried[job.key] += 1
            why = current.error_line or next(iter(current.eval_errors.values()), "")
            self.display.say(f"{job.key}: {why}: retry {self.tried[job.key]} of {self.policy.retries}")
            self.waiting.add(job)
        elif self.policy.on_failure == "stop" and not self.halted:
            self.halted = True
            self.display.say(f"{job.key} failed: no more runs start (--on-failure=stop), running ones finish")
            self.engine.withdraw()

    def _left(self, job: Job, reason: str) -> None:
        """The cluster or somebody ended a job: the run stays where it was saved."""
        current = self._read(self.runs[job.key])
        if current.status in ("running", "preempted", "failed") and job.workdir.joinpath("run.json").exists():
            state.mark(job.workdir, status="preempted", error=reason, updated=now())

    def _died(self, job: Job, reason: str, stopping: bool) -> None:
        """A worker died without a message: marks the run as failed, unless it is finished, or its evaluation."""
        current = self._read(self.runs[job.key])
        if current.status == "done":
            left = [name for name in job.evals if name in current.missing]
            if left and not stopping:
                record_eval_error(job.workdir, left[0], reason)
        elif stopping:
            if job.workdir.joinpath("run.json").exists() and current.status == "preempted":
                state.mark(job.workdir, status="preempted", updated=now())
        elif current.status != "diverged":
            state.mark(job.workdir, status="failed", error=reason, updated=now())

    def _stop(self, caught: list[int]) -> None:
        """Lets running runs save; a second signal kills them."""
        if not self.active:
            return
        number = len(self._at_work())
        if self.engine.detached and not self.summary.cancelled:
            self.display.say(
                f"{number} run{'s' * (number > 1)} left to {self.engine.name}: the same command follows them, "
                f"{commands.spelled('sweeps.cancel')} {self.directory} ends them"
            )
            return
        self.display.say(f"stopping: {number} run{'s' * (number > 1)} being saved (press again to end at once)")
        self.stopping = True
        self.engine.stop()
        end = time.monotonic() + GRACE
        while self.active and len(caught) < 2 and time.monotonic() < end:
            for ended in self.engine.ended(self.engine.tick):
                self._settle(ended, stopping=True)
            self._show()
        if self.active:
            self.engine.close()
            for place, job in list(self.active.items()):
                self._settle(Ended(place, job, None, "ended by the launcher"), stopping=True)

    def _show(self) -> None:
        at_work = self._at_work()
        for _, job in at_work:
            self._put(job.key, self._read(self.runs[job.key]))
        self.changed.update(job.key for _, job in at_work)
        self.display.update(self.board, {job.key: self._phase(place, job) for place, job in at_work}, self.changed)
        self.changed = {job.key for _, job in at_work}

    def _at_work(self) -> list[tuple[int, Job]]:
        """Returns (place, job) of every running run, including those in packs."""
        return [(place, one) for place, job in self.active.items() for one in (job, *job.companions)]

    def _phase(self, place: int, job: Job) -> str:
        if self.stopping:
            return "saving"
        current = self.board[job.key]
        message = self.engine.queued(place)
        if message:
            return message
        if current.status == "done":
            left = [name for name in job.evals if name in current.missing or name in current.eval_errors]
            return f"evaluating {left[0]}" if left else "ending"
        return "running" if current.status == "running" else "starting"

    def _sum_up(self, caught: bool) -> None:
        """Records for every incomplete run why it is incomplete."""
        for key, run in self.runs.items():
            current = self.board[key] = self._read(run)
            if current.status == "failed":
                self.summary.failed[key] = current.error_line
            elif current.status == "preempted" and self.resumed.get(key, 0) > RESUMPTIONS:
                self.summary.failed[key] = f"stopped {self.resumed[key]} times from outside"
            elif current.status == "diverged":
                self.summary.diverged[key] = current.error_line
            elif current.status == "waiting" and self.resumed.get(key, 0) > RESUMPTIONS:
                self.summary.failed[key] = f"lost {self.resumed[key]} times before it started: {self.lost[key]}"
            elif current.status == "waiting":
                self.summary.not_begun += self.halted
                self._not_begun(key)
            elif current.status == "preempted" and self.halted:
                self.summary.busy.setdefault(key, "stopped before it was done")
            elif current.status == "done" and current.missing and not caught and key not in self.summary.busy:
                self.summary.missing[key] = current.missing
            if current.eval_errors:
                self.summary.eval_errors[key] = dict(current.eval_errors)

    def _not_begun(self, key: str) -> None:
        """Records for a run that waited for others what became of those."""
        if why := select.unrunnable(self.directory, self.runs[key]):
            self.summary.diverged[key] = why
        if (why := select.blocked_by(self.runs[key], self.board)) and self.summary.stopped_by is None:
            self.summary.failed[key] = why
        before = chains.parent(self.runs[key])
        while before is not None and (current := self._read(self.runs[before])).status == "waiting":
            before = chains.parent(self.runs[before])
        if before is None or current.status == "done" or self.summary.stopped_by is not None:
            return
        message = self.summary.diverged if current.status == "diverged" else self.summary.failed
        message[key] = f"not started: {before}, which it continues, is {current.status}"


class _Bound(Mapping[str, Job]):
    """Jobs by their runs, each with its config filled in on access."""

    def __init__(self, jobs: Mapping[str, Job], bound: Callable[[Job], Job]) -> None:
        self._jobs, self._bound = jobs, bound

    def __getitem__(self, key: str) -> Job:
        return self._bound(self._jobs[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)
