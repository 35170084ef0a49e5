"""One sweep for real: trained, evaluated and reported by the command, and nothing done twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SWEEP = """
def get_sweep():
    return dict(
        name="whole", title="Whole", question="Does it work?", base="configs/tiny.py",
        fixed={
            "model.width": 16, "model.num_layers": 1, "data.length": 16, "data.batch_size": 2, "budget.amount": 6,
            "data.split": "first", "eval.every_steps": 0, "eval.multiples": (1,), "eval.bootstrap": 10,
            "log.every_steps": 2, "log.tensorboard": False,
        },
        axes=[{"model.num_heads": [1, 2]}],
        derived={"model.head_dim": lambda c: c.model.width // c.model.num_heads},
        arm="h{model.num_heads}", seeds=[0, 1], baseline="h1", evals=["loss", "memory"],
    )
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "sweep.py").write_text(SWEEP)
    (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 100)
    return folder


def launch(folder, *arguments):
    command = [sys.executable, "-m", "sweeps.launch", f"--sweep={folder / 'sweep.py'}", f"--out={folder / 'out'}"]
    command += [f"--config.data.path={folder / 'text.txt'}", "--workers=1", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)


def test_a_sweep_is_trained_evaluated_and_reported(whole):
    done = launch(whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {whole / 'out/report/index.html'}"
    assert (whole / "out/report/index.html").exists()
    runs = {}
    for arm in ("h1", "h2"):
        for seed in (0, 1):
            folder = whole / "out/runs" / arm / f"seed{seed}"
            runs[arm, seed] = run = json.loads((folder / "run.json").read_text())
            assert (run["status"], run["step"], run["seed"], run["name"]) == ("done", 6, seed, arm)
            loss = json.loads((folder / "eval/loss.json").read_text())
            assert loss["step"] == 6 and 0 < loss["loss"] < 7
            assert (folder / "eval/memory.json").exists()
            assert "step 6" in (folder / "log.txt").read_text()
    # One worker did it all, and a second seed compiled no training step.
    assert len({run["pid"] for run in runs.values()}) == 1
    assert runs["h1", 0]["wall_time"]["compile"] > 0
    assert runs["h1", 1]["wall_time"]["compile"] == runs["h2", 1]["wall_time"]["compile"] == 0
    assert len({run["data"]["fingerprint"] for run in runs.values()}) == 1


def test_the_same_command_again_changes_no_run(whole):
    files = {p: p.stat().st_mtime_ns for p in (whole / "out/runs").rglob("*") if p.is_file()}
    assert files
    done = launch(whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p: p.stat().st_mtime_ns for p in (whole / "out/runs").rglob("*") if p.is_file()} == files


def test_another_config_is_refused_before_anything_starts(whole):
    done = launch(whole, "--config.optimizer.learning_rate=0.5")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "error: runs/h1 (seed 0, 1): " in done.stderr
    assert "optimizer.learning_rate was 0.003, now 0.5" in done.stderr
