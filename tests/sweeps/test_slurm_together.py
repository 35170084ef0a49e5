"""A run trained by two of Slurm's tasks: queued again in the middle, it ends with the losses of one left alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.devices import losses
from sweeps import launch
from sweeps.execution.policy import Policy
from sweeps.launchers import engines, slurm
from sweeps.launchers.queues import slurm_options, squeue
from sweeps.spec import expand
from sweeps.store import jobs
from tests.cluster.slurm import require
from tests.sweeps.test_launch import until

SWEEP = """
def get_sweep():
    fixed = {{"mesh.data": 2, "data.weights.text": 0.0, "data.weights.mqar": 1.0, "budget.amount": {steps},
              "checkpoint.every_steps": 0, "log.every_steps": 20, "log.tensorboard": False, "eval.tokens": 512,
              "eval.every_steps": 0, "eval.multiples": (1,)}}
    return dict(name="two", base="configs/tiny.py", axes=[{{name: [value]}} for name, value in fixed.items()],
                arm="two", seeds=[0], evals=["loss"])
"""


def test_the_tasks_of_a_run_are_asked_for() -> None:
    result = slurm_options.parameters(Path("out"), slurm.Options(ntasks=4, nodes=2, cpus=3))
    assert (result["nodes"], result["ntasks_per_node"]) == (2, 2)
    assert result["srun_args"] == ["--cpus-per-task=3", "--wait=0"]
    assert slurm_options.parameters(Path("out"), slurm.Options())["srun_args"] == []


@pytest.mark.slow
def test_two_processes_queued_again_end_with_the_same_losses(tmp_path: Path) -> None:
    require()
    (tmp_path / "sweep.py").write_text(SWEEP.format(steps=600.0))
    sweep, where = expand.load(tmp_path / "sweep.py"), engines.Where("slurm", {"ntasks": "2", "cpus": "1"})

    def launched(name: str) -> Path:
        assert launch.launch(sweep, tmp_path / name, where=where, policy=Policy()).code == 0
        return tmp_path / name / "runs/two/seed0"

    whole = launched("whole")
    command = ["-m", "sweeps.launch", f"--sweep={tmp_path / 'sweep.py'}", f"--out={tmp_path / 'again'}"]
    command += ["--launcher=slurm", "--ntasks=2", "--cpus=1"]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) as launcher:
        run = tmp_path / "again/runs/two/seed0"
        until(lambda: (run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_text()) > 500, 400)
        (record,) = jobs.noted(tmp_path / "again")
        number = record.id.partition("_")[0]
        subprocess.run(["scontrol", "requeue", number], check=True)
        until(lambda: json.loads((run / "run.json").read_text())["status"] == "preempted", 200)
        at = json.loads((run / "run.json").read_text())["step"]
        assert launcher.wait(timeout=1500) == 0  # Slurm lets a job that is queued again wait for two minutes
    assert 0 < at < 600 and not squeue.states([record.id])[record.id].runs
    message = json.loads((run / "run.json").read_text())
    assert (message["status"], message["processes"], message["mesh"]["data"]) == ("done", 2, 2)
    np.testing.assert_array_equal(losses(run), losses(whole))  # a sum over two processes has one order
    assert (run / "eval/loss.json").exists()
