"""The Ray launcher: every run is a task on an existing Ray cluster, or on one started here for the sweep.

Ray selects a node with the processors, devices and other resources of a run, and ends the tasks of a launcher that has
died; the next launcher resumes the runs from their checkpoints. The sweep's folder must be on a file system shared by
all nodes.
"""

import functools
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from configs import cli
from configs.errors import UserError
from sweeps.execution import multiprocess
from sweeps.execution.serve import logged
from sweeps.execution.worker import Job, Outcome, redirect
from sweeps.launchers.launcher import (
    CPUS,
    GPUS,
    MEMORY,
    NTASKS,
    Built,
    Ended,
    Launcher,
    Option,
    count,
    exclusive,
    pairs,
    size,
)
from sweeps.launchers.resources import THREADS, cores
from sweeps.store import state
from training.runtime.distributed import ADDRESS, INDEX, NUMBER

MOST = 1000  # tasks submitted to Ray at once
MARKS = "ray"  # in the sweep's private folder: a file for each task that has started


@dataclass(frozen=True)
class Options:
    """The resources of each process of a run, and the cluster: None starts one, `auto` is that of this machine."""

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    memory: int | None = None  # bytes
    resources: Mapping[str, float] = field(default_factory=dict)
    ntasks: int = 1  # processes that train a run together


class RayEngine:
    """Submits jobs to Ray. A place is only a number here: Ray selects the nodes."""

    name = "ray"
    detached = False
    tick = 0.5

    def __init__(self, directory: Path, options: Options, workers: int | None = None) -> None:
        """`workers`: maximum tasks in Ray at once.

        Raises:
            UserError: Ray is not installed, no cluster answers, or no node has a run's resources.
        """
        try:
            import ray
        except ImportError:
            raise UserError("--launcher=ray needs Ray: pip install 'ray', or make setup EXTRAS=dev,ray") from None
        self.ray, self.most = ray, min(workers or MOST, MOST)
        self.marks = directory / state.PRIVATE / MARKS
        self.marks.mkdir(parents=True, exist_ok=True)
        self._connect(options)
        try:
            _refuse_impossible(ray, options)
        except UserError:
            ray.shutdown()
            raise
        threads = str(max(1, int(options.cpus)))
        self.remote = functools.partial(
            ray.remote,
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            memory=options.memory or 0,
            resources=dict(options.resources),
            max_retries=0,  # the launcher decides about retries
            runtime_env={"env_vars": dict.fromkeys(THREADS, threads) | {"PYTHONPATH": _path()}},
        )
        self.ntasks, self.bundle = options.ntasks, _asked(options)
        self.groups: dict[int, Any] = {}  # for runs of several processes: what they wait for together
        self.active: dict[int, tuple[Any, Job, Path]] = {}
        self.stopped = False

    def _connect(self, options: Options) -> None:
        if options.address is None:
            # Ray counts the machine's processors, and a container may have fewer; without `local` it would join a
            # cluster that runs here.
            expected: dict[str, Any] = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
            if options.resources:
                expected["resources"] = dict(options.resources)
        else:
            expected = {"address": options.address}
        try:
            self.ray.init(**expected, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            message = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"--address={options.address}: {message}") from error

    def adopt(self, expected: Mapping[str, Job]) -> dict[int, Job]:
        """Returns nothing: Ray ends tasks with their launcher."""
        return {}

    def free(self) -> list[int]:
        """Returns the places without a job."""
        return [i for i in range(self.most) if i not in self.active]

    def start(self, place: int, job: Job) -> None:
        """Submits a job to Ray."""
        mark = self.marks / f"{os.getpid()}-{place}"
        mark.unlink(missing_ok=True)
        if self.ntasks == 1:
            reference = self.remote()(task).remote(job, str(mark))
        else:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            group = self.ray.util.placement_group([self.bundle] * self.ntasks)
            within = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
            placed = functools.partial(self.remote, scheduling_strategy=within)
            reference = placed()(lead).remote(job, str(mark), self.ntasks, placed()(follow))
            self.groups[place] = group
        self.active[place] = (reference, job, mark)

    def queued(self, place: int) -> str:
        """Returns whether Ray has not started the job yet."""
        return "" if self.active[place][2].exists() else "queued"

    def ended(self, timeout: float) -> list[Ended]:
        """Waits until a job ends, at most `timeout` seconds; returns those that did."""
        places = {reference: place for place, (reference, _, _) in self.active.items()}
        if not places:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(places), num_returns=1, timeout=timeout, fetch_local=False)
        if ready:  # others that are ready as well
            ready, _ = self.ray.wait(list(places), num_returns=len(places), timeout=0, fetch_local=False)
        return [self._end(places[reference]) for reference in ready]

    def _end(self, place: int) -> Ended:
        reference, job, mark = self.active.pop(place)
        begun = mark.exists()
        mark.unlink(missing_ok=True)
        if place in self.groups:
            self.ray.util.remove_placement_group(self.groups.pop(place))
        errors = self.ray.exceptions
        try:
            return Ended(place, job, self.ray.get(reference))
        except errors.TaskCancelledError:
            return Ended(place, job, None, "cancelled before it started", "cancelled")
        except errors.NodeDiedError as error:
            return Ended(place, job, None, f"ray: {_line(error)}", "lost")
        except errors.OutOfMemoryError as error:
            return Ended(place, job, None, f"ray: out of memory: {_line(error)}")
        except errors.RayError as error:
            if self.stopped and not begun:
                return Ended(place, job, None, "cancelled before it started", "cancelled")
            if not begun:
                return Ended(place, job, None, f"ray: {_line(error)}", "lost")
            crashed = isinstance(error, errors.WorkerCrashedError)
            return Ended(place, job, None, f"ray: {'its worker process died' if crashed else _line(error)}")

    def withdraw(self) -> None:
        """Cancels tasks that have not started."""
        for reference, _, mark in self.active.values():
            if not mark.exists():
                self.ray.cancel(reference)

    def stop(self) -> None:
        """Interrupts every task, as Ctrl-C would: running ones save themselves."""
        self.stopped = True
        for reference, _, _ in self.active.values():
            self.ray.cancel(reference)

    def close(self) -> None:
        """Ends every task, and the cluster if it was started here."""
        self.ray.shutdown()


def task(job: Job, mark: str) -> Outcome:
    """Does one run in a Ray worker."""
    Path(mark).touch()
    return logged(job, Path(os.devnull))


def lead(job: Job, mark: str, ntasks: int, others: Any) -> Outcome:
    """Does one run in a Ray worker with others, which it starts: they connect to this one's address."""
    import ray
    from ray.util import get_node_ip_address

    Path(mark).touch()
    with socket.socket() as result:
        result.bind(("", 0))
        address = f"{get_node_ip_address()}:{result.getsockname()[1]}"
    shared = {"ABLAX_CLUSTER": "address", ADDRESS: address, NUMBER: str(ntasks)}
    references = [others.remote(job, {**shared, INDEX: str(index)}) for index in range(1, ntasks)]
    os.environ.update({**shared, INDEX: "0"})
    try:
        return logged(replace(job, train=multiprocess.TRAIN), Path(os.devnull))
    finally:
        for name in (*shared, INDEX):
            os.environ.pop(name, None)
        for reference in references:
            ray.cancel(reference)


def follow(job: Job, env: Mapping[str, str]) -> Outcome:
    """The part of every process but the first."""
    redirect(job.workdir / "log.txt")
    return multiprocess.follow(job, env)


def _path() -> str:
    """Returns PYTHONPATH for workers: packages are imported from the checkout."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(cli.CHECKOUT), *([before] if before else [])])


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _asked(options: Options) -> dict[str, float]:
    """Returns the resources of each process of a run."""
    requested = {"CPU": options.cpus, "GPU": options.gpus, "memory": options.memory or 0, **options.resources}
    return {name: amount for name, amount in requested.items() if amount}


def _refuse_impossible(ray: Any, options: Options) -> None:
    """Raises UserError if no node of the cluster could ever take a run: Ray would wait for one forever."""
    requested = _asked(options)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= amount for name, amount in requested.items()) for node in nodes):
        expected = ", ".join(f"{name} {amount:g}" for name, amount in requested.items())
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in requested}
        there = ", ".join(f"{name} {amount:g}" for name, amount in most.items())
        raise UserError(f"--launcher=ray: no node has a run's resources ({expected}); the maximum is {there}")


RESOURCE = Option("NAME=AMOUNT", "any other resource of a run; repeatable", True)


def _amount(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--resource={name}={text}: must be a number") from None


def _build(directory: Path, options: Mapping[str, Any], workers: int | None, runs: int) -> Built:
    amounts = {name: _amount(name, text) for name, text in pairs(options, "resource", RESOURCE).items()}
    gpus = count(options, "gpus", 0)
    requested = Options(
        options.get("address"),
        count(options, "cpus") or 1,
        gpus or 0,
        size(options["memory"]) if "memory" in options else None,
        amounts,
        count(options, "ntasks") or 1,
    )
    return Built(RayEngine(directory, requested, workers), "handed to Ray", exclusive(gpus, workers))


RAY = Launcher(
    "ray",
    _build,
    options={
        "ntasks": NTASKS,
        "cpus": CPUS,
        "gpus": GPUS,
        "memory": MEMORY,
        "address": Option("HOST:PORT", "the Ray cluster; auto: the one of this machine; unset: one is started here"),
        "resource": RESOURCE,
    },
)
