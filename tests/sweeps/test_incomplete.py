"""What once went unsaid: evaluations without a result, tasks that never began, a launcher that is killed."""

import os
import signal
import subprocess
import sys
import time
import types

import pytest

from configs.errors import UserError
from sweeps.execution import driver, worker
from sweeps.execution.driver import Functions
from sweeps.launchers import ray, slurm
from sweeps.launchers.local import Ended
from sweeps.launchers.queues import slurm_options, squeue
from sweeps.spec import expand
from tests.sweeps import fakes
from tests.sweeps.test_launch import CHECKOUT, FAKES, gone, run, sweep_of, until


def test_an_evaluation_that_leaves_no_result_has_failed(tmp_path, capsys):
    functions = Functions(FAKES.train, "tests.sweeps.fakes:evaluate_nothing")
    summary = run(tmp_path, sweep_of(tmp_path, ["a"]), functions)
    assert summary.code == 1
    assert summary.eval_errors == {"a/seed0": {"loss": "wrote no eval/loss.json"}}
    assert "evaluation failed: a/seed0: loss: wrote no eval/loss.json" in capsys.readouterr().out
    assert run(tmp_path, sweep_of(tmp_path, ["a"])).code == 0


def test_an_evaluation_whose_note_of_failure_is_gone_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(driver, "record_eval_error", lambda *_: None)  # as where another worker cleared it
    summary = run(tmp_path, sweep_of(tmp_path, ["evalkill", "a"]))
    assert (summary.code, summary.missing, summary.eval_errors) == (1, {"evalkill/seed0": ("loss",)}, {})
    assert "not evaluated: evalkill/seed0: loss (the same command retries)" in capsys.readouterr().out


LAUNCHER = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell's `command &` inherits it
from pathlib import Path
from sweeps import launch
from sweeps.spec import expand
from sweeps.execution.driver import Functions
functions = Functions("tests.sweeps.fakes:train", "tests.sweeps.fakes:evaluate_long")
launch.launch(expand.load(sys.argv[1]), Path(sys.argv[2]), workers=1, functions=functions)
"""
SWEEP = "def get_sweep():\n    return dict(name='t', base='configs/tiny.py', axes=[], arm='a', evals=['loss'])\n"


def test_workers_end_within_seconds_of_their_launcher_also_where_sigint_is_ignored(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "sweep.py"), str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    try:
        until(lambda: ("loss", "a/seed0") in fakes.calls(tmp_path / "out"))
        (pid,) = fakes.pids(tmp_path / "out")
    finally:
        process.kill()
        process.wait()
    began = time.monotonic()
    try:
        until(lambda: gone(pid), 30)
    finally:
        if not gone(pid):
            os.kill(int(pid), signal.SIGKILL)
    assert time.monotonic() - began < 20
    assert run(tmp_path, expand.load(tmp_path / "sweep.py")).code == 0  # no lock is left


class NodeDied(Exception):
    """Any error of Ray's that is none of the others."""


def _ray(error, begun, tmp_path):
    """Returns how a task ends whose result is an error; `begun`: it had left its mark."""
    errors = types.SimpleNamespace(
        TaskCancelledError=LookupError, NodeDiedError=KeyError, OutOfMemoryError=MemoryError, RayError=NodeDied,
        WorkerCrashedError=NodeDied,
    )  # fmt: skip

    def get(reference):
        raise error

    engine = ray.RayEngine.__new__(ray.RayEngine)
    engine.ray = types.SimpleNamespace(exceptions=errors, get=get)
    engine.groups, engine.stopped = {}, False
    mark = tmp_path / "mark"
    if begun:
        mark.touch()
    engine.active = {0: ("reference", worker.Job(str(tmp_path), "s", "a", 0, {}, ()), mark)}
    return engine._end(0)


def test_a_task_of_ray_that_had_not_begun_is_lost_and_not_failed(tmp_path):
    assert _ray(NodeDied("the raylet is gone"), False, tmp_path).how == "lost"
    assert _ray(NodeDied("the raylet is gone"), True, tmp_path).how == "died"


class Losing:
    """An engine that loses every task before it begins."""

    name, detached, tick = "losing", False, 0.0

    def __init__(self):
        self.job = None

    def adopt(self, expected):
        return {}

    def free(self):
        return [] if self.job else [0]

    def start(self, place, job):
        self.job = job

    def queued(self, place):
        return ""

    def ended(self, timeout):
        job, self.job = self.job, None
        return [Ended(0, job, None, "ray: the raylet is gone", "lost")] if job else []


def test_a_run_that_is_lost_again_and_again_before_it_begins_is_told(tmp_path, capsys):
    sweep = sweep_of(tmp_path, ["a"])
    shown = types.SimpleNamespace(update=lambda *_: None, say=lambda _: None)
    summary = driver.Driver(tmp_path / "out", sweep, Losing(), shown, functions=FAKES).drive([])
    assert summary.code == 1
    assert summary.failed == {"a/seed0": "lost 4 times before it started: ray: the raylet is gone"}


ENV = {"SLURM_CONF": "/a", "SLURM_CLUSTERS": "c", "SBATCH_PARTITION": "gpu", "SQUEUE_STATES": "PD", "HOME": "/h"}
ENV |= {"SCANCEL_NAME": "x", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SUBMITIT_EXECUTOR": "slurm"}


def test_every_command_of_slurm_gets_the_same_environment():
    assert squeue.environment(ENV) == {"SLURM_CONF": "/a", "SLURM_CLUSTERS": "c", "HOME": "/h"}
    assert squeue.environment({"SBATCH_CLUSTERS": "d", "SLURM_CLUSTERS": "c"}) == {"SLURM_CLUSTERS": "d"}
    for several in ("a,b", "all"):
        with pytest.raises(UserError, match="must name one cluster"):
            squeue.environment({"SLURM_CLUSTERS": several})


def test_variables_of_sbatch_are_taken_over_or_refused(tmp_path):
    given = slurm_options.parameters(tmp_path, slurm.Options())
    assert slurm_options.variables(ENV, given) == {"SBATCH_PARTITION": "gpu"}
    assert slurm_options.variables(ENV, slurm_options.parameters(tmp_path, slurm.Options(partition="cpu"))) == {}
    with pytest.raises(UserError, match="SBATCH_WAIT=1: a sweep does not support this variable"):
        slurm_options.variables({"SBATCH_WAIT": "1"}, given)
    with pytest.raises(UserError, match="set SLURM_CLUSTERS=big instead"):
        slurm_options.variables({}, slurm_options.parameters(tmp_path, slurm.Options(extra={"clusters": "big"})))


STUB = """#!/bin/sh
env > "$DUMPS/$(basename $0)"
[ "$(basename $0)" = sbatch ] && echo "Submitted batch job 77"
exit 0
"""


def test_sbatch_and_squeue_are_asked_of_one_cluster(tmp_path, monkeypatch):
    """What the commands themselves see, of stubs in their place."""
    for name in ("sbatch", "squeue", "srun", "scancel"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DUMPS", str(tmp_path))
    engine = slurm.SlurmEngine(tmp_path / "out", slurm.Options())
    engine.start(0, worker.Job(str(tmp_path / "out"), "s", "a", 0, {}, ()))
    engine._submit()
    squeue.cancel(["77"])
    seen = {}
    for name in ("sbatch", "squeue", "scancel"):
        lines = (tmp_path / name).read_text().splitlines()
        seen[name] = {line for line in lines if line.startswith(squeue.OURS)}
    assert seen["squeue"] == seen["scancel"] == {"SLURM_CONF=/a", "SLURM_CLUSTERS=c"}
    assert seen["sbatch"] == {"SLURM_CONF=/a", "SLURM_CLUSTERS=c", "SBATCH_PARTITION=gpu"}
    assert os.environ["SLURM_JOB_ID"] == "7"  # this process's own are as before
