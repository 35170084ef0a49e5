"""The Ray launcher against a real Ray on this machine."""

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

from configs.errors import UserError
from sweeps import launch
from sweeps.execution.driver import Functions
from sweeps.execution.policy import Policy
from sweeps.launchers import engines, ray
from sweeps.spec import expand
from sweeps.store import state
from tests.sweeps import fakes
from tests.sweeps.test_launch import CHECKOUT, FAKES, gone, sweep_of, until
from tests.sweeps.test_slurm import SWEEP

# Ray leaves a socket and a subprocess to be collected when it is shut down.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def run(tmp_path, sweep, functions=FAKES, retries=0, **options):
    where = engines.Where("ray", options)
    return launch.launch(sweep, tmp_path / "out", functions=functions, where=where, policy=Policy(retries=retries))


def test_every_run_once_and_a_worker_that_dies_fails_its_run_alone(tmp_path):
    summary = run(tmp_path, sweep_of(tmp_path, ["a", "raise", "kill", "diverge", "b"]))
    assert summary.failed == {
        "raise/seed0": "RuntimeError: no such luck", "kill/seed0": "ray: its worker process died",
    }  # fmt: skip
    assert list(summary.diverged) == ["diverge/seed0"]
    counts = Counter(fakes.calls(tmp_path / "out"))
    assert {key: n for (what, key), n in counts.items() if what == "train"} == dict.fromkeys(
        [f"{arm}/seed0" for arm in ("a", "raise", "kill", "diverge", "b")], 1
    )
    assert counts["loss", "a/seed0"] == counts["loss", "b/seed0"] == 1
    assert "training a" in (tmp_path / "out/runs/a/seed0/log.txt").read_text()


@pytest.mark.slow
def test_a_stopped_or_killed_launcher_leaves_runs_that_the_next_one_continues(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP.format(arms=["slow-a", "a", "b"]))
    command = [sys.executable, "-m", "tests.sweeps.fakes", str(tmp_path / "sweep.py"), str(tmp_path / "out"), "ray"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    saved = tmp_path / "out/runs/slow-a/seed0/saved"
    until(lambda: (saved.parent / "metrics.jsonl").exists(), 200)
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=200)[0]
    assert process.returncode == 130, message
    assert 0 < int(saved.read_text()) < 600
    assert state.run_states(tmp_path / "out")["slow-a/seed0"].status == "preempted"
    sweep = expand.load(tmp_path / "sweep.py")
    # Begun on Ray, finished on this machine.
    quick = Functions("tests.sweeps.fakes:quick", FAKES.evaluate)
    assert launch.launch(sweep, tmp_path / "out", workers=2, functions=quick).code == 0
    assert all(run.complete for run in state.run_states(tmp_path / "out").values())
    until(lambda: all(gone(pid) for pid in fakes.pids(tmp_path / "out")), 120)


class Nodes:
    """A cluster of two nodes, as `ray.nodes` tells it, one of them gone."""

    @staticmethod
    def nodes():
        return [
            {"Alive": True, "Resources": {"CPU": 4.0, "memory": 2e9}},
            {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 2.0, "big": 1.0}},
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        ]


@pytest.mark.parametrize("options", [{"cpus": 4}, {"gpus": 2}, {"gpus": 1, "resources": {"big": 1}}, {"memory": 10**9}])
def test_what_a_node_has_is_taken(options):
    ray._refuse_impossible(Nodes, ray.Options(**options))


@pytest.mark.parametrize("options", [{"cpus": 5}, {"cpus": 2, "gpus": 1}, {"gpus": 8}, {"resources": {"small": 1}}])
def test_what_no_node_has_is_refused_and_not_waited_for(options):
    with pytest.raises(UserError, match=r"no node has a run's resources .*the maximum is CPU 4"):
        ray._refuse_impossible(Nodes, ray.Options(**options))


def test_no_cluster_that_answers_is_refused(tmp_path):
    with pytest.raises(UserError, match="--address=nonsense"):
        run(tmp_path, sweep_of(tmp_path, ["a"]), address="nonsense")
    assert not fakes.calls(tmp_path / "out")


@pytest.mark.slow
def test_two_tasks_train_one_run_together(tmp_path):
    from tests.sweeps.test_slurm_together import SWEEP as TOGETHER

    (tmp_path / "sweep.py").write_text(TOGETHER.format(steps=40.0))
    where = engines.Where("ray", {"ntasks": "2"})
    assert launch.launch(expand.load(tmp_path / "sweep.py"), tmp_path / "out", where=where).code == 0
    message = json.loads((tmp_path / "out/runs/two/seed0/run.json").read_text())
    assert (message["status"], message["processes"], message["mesh"]["data"], message["step"]) == ("done", 2, 2, 40)
    assert (tmp_path / "out/runs/two/seed0/eval/loss.json").exists()
