"""Launchers are objects of a registry: a second detached one needs no other file."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

import pytest

from configs import cli
from configs.errors import UserError
from sweeps import cancel, status
from sweeps.launchers import engines, registry
from sweeps.launchers.launcher import Built, Launcher, Option, Queue
from sweeps.launchers.local import LocalEngine
from sweeps.spec import expand
from sweeps.store import jobs, state
from sweeps.store.jobs import JobState

SWEEP = """
def get_sweep():
    return dict(name="test", base="configs/tiny.py", axes=[{"model.num_heads": [1, 2]}], seeds=[0],
                arm=lambda c: "ab"[c.model.num_heads - 1], evals=["loss"])
"""


class Cluster:
    """A queue that knows its jobs by number."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobState] = {}
        self.cancelled: list[str] = []

    def states(self, directory: Path, records) -> dict[str, JobState]:
        return {record.key: self.jobs[record.id] for record in records if record.id in self.jobs}

    def cancel(self, ids) -> None:
        self.cancelled += ids
        self.jobs |= {job: JobState("KILLED") for job in ids}


@pytest.fixture
def pbs(monkeypatch) -> Cluster:
    cluster = Cluster()

    def build(directory: Path, options, workers: int | None, runs: int) -> Built:
        return Built(LocalEngine([]), f"queued in {options['queue']}", False)

    launcher = Launcher(
        "pbs",
        build,
        {"queue": Option("NAME", "the queue")},
        queue=Queue("PBS", re.compile(r"\d+"), cluster.states, cluster.cancel),
    )
    monkeypatch.setitem(registry.LAUNCHERS, "pbs", launcher)
    return cluster


def parsed(*argv: str) -> engines.Where:
    parser = cli.parser("")
    engines.add_options(parser)
    return engines.Where.parse(parser.parse_args(argv))


def test_a_second_detached_launcher_is_asked_shown_and_cancelled(pbs: Cluster, tmp_path: Path, capsys) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    sweep, out = expand.load(tmp_path / "sweep.py", {}), tmp_path / "out"
    with state.launching(out):
        state.take_up(out, sweep, "2026-11-30T00:00:00")
    pbs.jobs = {"7": JobState("Q", "no node", phase="waiting"), "8": JobState("R", phase="running")}
    jobs.note(out, jobs.Record("pbs", "7", "a", 0, "", ""))
    jobs.note(out, jobs.Record("pbs", "8", "b", 0, "", ""))
    jobs.note(out, jobs.Record("newer", "9", "b", 1, "", ""))  # of a launcher that this version does not know
    board, silent = status.run_states(out)
    assert not silent
    assert board["a/seed0"].note == "queued: pbs job 7 (no node)" and board["b/seed0"].note == "pbs job 8"
    pbs.jobs, known = {}, pbs.jobs
    assert status.run_states(out)[1].startswith("PBS does not answer: 2 runs")
    pbs.jobs = known
    assert cancel.cancel(out, 5.0) == 0
    assert pbs.cancelled == ["7", "8"] and "2 jobs cancelled on pbs" in capsys.readouterr().out
    assert [record.engine for record in jobs.noted(out)] == ["newer"]


def test_options_are_those_that_launchers_declare(pbs: Cluster, tmp_path: Path) -> None:
    where = parsed("--launcher=pbs", "--queue=long")
    assert where.build(tmp_path, None, 1).words == "queued in long"
    with pytest.raises(UserError, match=r"--queue=long: --launcher=local does not take it; it is for pbs"):
        parsed("--queue=long")
    with pytest.raises(UserError, match=r"--memory=1G: --launcher=pbs does not take it; it is for slurm and ray"):
        parsed("--launcher=pbs", "--memory=1G")
    with pytest.raises(UserError, match=r"--launcher=pbx: must be local, slurm, ray or pbs; did you mean pbs\?|pbx"):
        parsed("--launcher=pbx")


def test_one_option_means_one_thing(pbs: Cluster, monkeypatch) -> None:
    other = replace(registry.LAUNCHERS["pbs"], options={"memory": Option("PERCENT", "share of a node")})
    monkeypatch.setitem(registry.LAUNCHERS, "pbs", other)
    with pytest.raises(ValueError, match="--memory is declared differently by slurm and pbs"):
        engines.add_options(argparse.ArgumentParser())


def test_every_launcher_says_what_outlives_it() -> None:
    """Engines whose jobs go on without their launcher are those that can be asked and cancelled from elsewhere."""
    from sweeps.launchers.kubernetes import KubernetesEngine
    from sweeps.launchers.ray import RayEngine
    from sweeps.launchers.slurm import SlurmEngine

    detached = {engine.name for engine in (LocalEngine, SlurmEngine, RayEngine, KubernetesEngine) if engine.detached}
    assert detached == {name for name, launcher in registry.LAUNCHERS.items() if launcher.queue is not None}
