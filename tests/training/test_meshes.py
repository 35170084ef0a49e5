"""One run on many meshes: the same losses, and any checkpoint goes on anywhere (see bench/devices.py)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bench import devices
from configs.errors import ConfigError
from training.loop import validation
from training.run_directory import run as runs
from training.step import mesh as meshes

# Three KV heads for two shards: each is there twice.
HEADS = {"model.width": 48, "model.num_heads": 6, "model.num_kv_heads": 3}
TINY = {"model.num_layers": 1, "data.length": 32, "eval.tokens": 512, **HEADS}


def cells(*names: str) -> list[devices.Cell]:
    return [cell for cell in devices.CELLS if cell.name in names]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("meshes")
    result = devices.measured(folder, cells("1 device", "data 2, fsdp 2, tensor 2"), 4, TINY)
    return {**result, "folder": folder}


def worst(found: dict[str, Any]) -> float:
    return max(*found["trace"].values(), *(x for row in found["restored"].values() for x in row.values()))


def test_a_mesh_changes_no_loss_and_each_goes_on_from_the_other(few: dict[str, Any]) -> None:
    assert len(few["trace"]) == 2 and len(few["losses"]) == 5
    assert worst(few) < 1e-5, few


def test_run_json_tells_the_mesh_and_one_device_evaluates(few: dict[str, Any]) -> None:
    run = few["folder"] / "cell1"
    message = json.loads((run / "run.json").read_text())
    assert message["mesh"] == {"data": 2, "fsdp": 2, "context": 1, "tensor": 2} and message["processes"] == 1
    assert message["devices"][0]["count"] == 8
    assert len(jax.devices()) == 1
    run = runs.load(run)
    batches = validation.batches(run.config, run.tokenizer, runs.open_data(run.config))
    validate = validation.validator(run.config, batches)
    assert validate(run.params) == pytest.approx(message["val_loss"], rel=1e-5)


def test_more_devices_than_there_are_are_refused_in_a_line() -> None:
    from configs import validate

    config = validate.resolve(devices.config_of(devices.Cell("", {"data": 2}), 4, {}))
    with pytest.raises(ConfigError, match=r"config.mesh: data = 2, .* takes 2 devices, and there are 1$"):
        meshes.mesh_of(config)
    assert meshes.mesh_of(validate.resolve(devices.config_of(devices.Cell("", {"data": -1}), 4, {}))) is None


@pytest.mark.slow
def test_every_mesh_has_the_same_losses_and_goes_on_from_every_other(tmp_path: Path) -> None:
    result = devices.measured(tmp_path, steps=6)
    assert len(result["restored"]) == len(devices.CELLS) == 10
    print("\n".join(devices.table(result)))
    assert worst(result) < 1e-4, result


SETTINGS = (
    "data.weights.text=0.0 data.weights.mqar=1.0 budget.amount=400 log.tensorboard=False log.every_steps=100 "
    "checkpoint.every_steps=0 eval.tokens=512 mesh.data=2"
).split()


def together(workdir: Path, *more: str) -> list[subprocess.Popen[str]]:
    """Starts the two processes of a run."""
    changes = [f"--config.{setting}" for setting in (*SETTINGS, *more)]
    command = [sys.executable, "train.py", "--config=configs/tiny.py", *changes, f"--workdir={workdir}"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, cwd=devices.CHECKOUT, env=env, **pipes) for env in devices.environments(2, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_is_killed_ends_the_other_and_the_run_goes_on(tmp_path: Path, dies: int) -> None:
    processes = together(tmp_path, "log.every_steps=10", "checkpoint.every_steps=10")
    until = time.monotonic() + 600
    while not (tmp_path / "checkpoints/20").exists():
        assert time.monotonic() < until and processes[0].poll() is None
        time.sleep(0.05)
    processes[dies].kill()
    processes[dies].communicate()
    said = processes[1 - dies].communicate(timeout=300)[0]
    code, aborted = processes[1 - dies].returncode, "another task died" in said
    # Process 0 is the one that JAX's others ask; when it is gone, JAX may end them before Python hears of it.
    assert code == 2 or (dies == 0 and code == -signal.SIGABRT and aborted), said
    assert aborted or said.splitlines()[-1].startswith("error: the processes of this run lost one another (")
    assert "Traceback" not in said
    message = json.loads((tmp_path / "run.json").read_text())
    assert message["status"] == ("failed" if dies == 1 else "running")
    processes = together(tmp_path)
    said = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0] and "continuing at step " in said[0], said


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_is_killed_while_a_checkpoint_is_written_ends_the_other_in_seconds(
    tmp_path: Path, dies: int
) -> None:
    processes = together(tmp_path, "log.every_steps=10", "checkpoint.every_steps=1")
    until = time.monotonic() + 600
    while not (tmp_path / "checkpoints/3").exists() or not list(tmp_path.glob("checkpoints/*.orbax-checkpoint-tmp")):
        assert time.monotonic() < until and processes[0].poll() is None
    processes[dies].kill()
    began = time.monotonic()
    processes[dies].communicate()
    said = processes[1 - dies].communicate(timeout=300)[0]
    assert time.monotonic() - began < 20, said
    code, aborted = processes[1 - dies].returncode, "another task died" in said
    assert code == 2 or (dies == 0 and code == -signal.SIGABRT and aborted), said
    assert aborted or said.splitlines()[-1].startswith("error: the processes of this run lost one another (")
    if dies == 1:
        message = json.loads((tmp_path / "run.json").read_text())
        assert message["status"] == "failed" and message["error"].startswith(
            "the processes of this run lost one another ("
        )


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_at_one_step_and_the_run_goes_on_exactly(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for process in together(whole):
        message = process.communicate(timeout=900)[0]
        assert process.returncode == 0, message
    processes = together(stopped)
    until = time.monotonic() + 600
    while not (stopped / "metrics.jsonl").exists() or not (stopped / "metrics.jsonl").read_text():
        assert time.monotonic() < until and processes[0].poll() is None
        time.sleep(0.05)
    os.kill(processes[1].pid, signal.SIGTERM)  # the one that writes nothing
    for process in processes:
        process.communicate(timeout=400)
    assert [process.returncode for process in processes] == [4, 4]
    message = json.loads((stopped / "run.json").read_text())
    assert message["status"] == "preempted" and 100 <= message["step"] < 400
    for process in together(stopped):
        assert process.communicate(timeout=900) and process.returncode == 0
    first, second = (devices.losses(run) for run in (whole, stopped))
    np.testing.assert_array_equal(first, second)
