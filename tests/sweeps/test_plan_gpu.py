"""Plans for GPUs that are not here: kernels that are really in the program, memory, collectives, a bound."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.runtime.compile_only import CUDA_PLUGINS
from training.runtime.gpus import GPUS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(importlib.util.find_spec(name) for name in CUDA_PLUGINS),
        reason="needs JAX's CUDA plugin (make setup EXTRAS=dev,plan-gpu)",
    ),
]
CHECKOUT = Path(__file__).resolve().parents[2]
SMALL = {"model.num_layers": 2, "model.width": 256, "model.num_heads": 4, "data.length": 256, "data.batch_size": 8}


def planned(tmp_path, sweep, target, *options):
    """Plans a sweep in a process of its own, since JAX's plugin stays in the one it was loaded in."""
    (tmp_path / "s.py").write_text(f"def get_sweep():\n    return {sweep!r}\n", encoding="utf-8")
    out = tmp_path / "plan.json"
    command = [sys.executable, "-m", "sweeps.plan", f"--sweep={tmp_path / 's.py'}", f"--target={target}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": ""}
    done = subprocess.run(
        [*command, f"--json={out}", *options], cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=3000
    )
    assert out.exists(), done.stderr
    return done.returncode, done.stdout, {arm["arm"]: arm for arm in json.loads(out.read_text())["arms"]}


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_gpu_compiles_both_programs_with_cudnn(tmp_path, name):
    code, shown, arms = planned(tmp_path, dict(base="configs/lm.py", fixed=SMALL, arm="a"), f"{name}:1")
    assert code == 0, shown
    step, decode = arms["a"]["programs"]["train_step"], arms["a"]["programs"]["decode"]
    assert step["kernel"] == "cudnn" and not step["missing"] and not step["collectives"]
    assert step["kernels"] == {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 2}
    assert 0 < step["needed"] < step["available"] == GPUS[name].memory
    for program in (step, decode):
        bound = program["roofline"]
        assert bound["seconds"] == max(bound["compute_seconds"], bound["memory_seconds"]) > 0
    assert decode["roofline"]["bound_by"] == "memory"


def test_eight_gpus_of_a_host_sum_gradients(tmp_path):
    code, shown, arms = planned(
        tmp_path, dict(base="configs/lm.py", fixed=SMALL, arm="a"), "h100:8", "--programs=train_step"
    )
    assert code == 0, shown
    step = arms["a"]["programs"]["train_step"]
    reduced = sum(one["bytes"] for one in step["collectives"] if one["kind"] in ("all-reduce", "reduce-scatter"))
    # Gradients of matrices are bfloat16 where they are summed, since the matmuls are.
    assert 2 * arms["a"]["parameters"]["total"] <= reduced <= 6 * arms["a"]["parameters"]["total"]


def test_an_arm_too_large_is_refused_with_both_numbers(tmp_path):
    fixed = {**SMALL, "data.batch_size": 2**17}
    code, shown, arms = planned(
        tmp_path, dict(base="configs/lm.py", fixed=fixed, arm="a"), "a100:1", "--programs=train_step"
    )
    assert code == 1
    step = arms["a"]["programs"]["train_step"]
    assert step["needed"] > step["available"] > 0
    assert "the train step does not fit: it needs" in shown
