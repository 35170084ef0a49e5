"""Plans for TPUs that are not here: every config compiles, with Pallas kernels; what is too large is told."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu (make setup EXTRAS=dev,tpu)"),
]
CHECKOUT = Path(__file__).resolve().parents[2]
# Configs that train by themselves; the others are parts of these.
CONFIGS = sorted(
    path.stem for path in (CHECKOUT / "configs").glob("*.py") if "def get_config" in path.read_text(encoding="utf-8")
)
# Position kinds of each place: none needed, turned, a bias, a function of the scores.
KINDS = {"none": "splash", "rope": "splash", "alibi": "flash", "t5": "flash", "kerple_log": "flash", "fire": "flash",
         "cope": "reference"}  # fmt: skip


def planned(tmp_path, sweep, target, *options):
    """Plans a sweep in a process of its own, since libtpu stays in the one it was loaded in."""
    (tmp_path / "s.py").write_text(f"def get_sweep():\n    return {sweep!r}\n", encoding="utf-8")
    out = tmp_path / "plan.json"
    command = [sys.executable, "-m", "sweeps.plan", f"--sweep={tmp_path / 's.py'}", f"--target={target}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, f"--json={out}", *options], cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=3000
    )
    assert out.exists(), done.stderr
    assert "Warning" not in done.stderr
    arms = {arm["arm"]: arm for arm in json.loads(out.read_text())["arms"]}
    return done.returncode, done.stdout, arms


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_compiles_with_the_kernel_of_its_platform(tmp_path, name):
    fixed = {"model.remat": "block"} if name == "llama_350m" else {}  # a GPU of 80 GB needs none
    code, message, arms = planned(tmp_path, dict(base=f"configs/{name}.py", fixed=fixed, arm="a"), "v5e:1x1")
    assert code == 0, message
    step, decode = arms["a"]["programs"]["train_step"], arms["a"]["programs"]["decode"]
    assert step["kernel"] in ("splash", "flash") and decode["kernel"] == "reference"
    assert set(step["kernels"]) and not decode["kernels"]
    assert 0 < step["needed"] < step["available"] and 15 * 2**30 < step["available"] < 16 * 2**30
    assert step["cycles"]["mlp"] > 0 and step["cycles"]["optimizer"] > 0 and not step["collectives"]
    assert sum(step["cycles"].values()) > 10 * step["cycles"].get("unnamed", 0)  # loops keep their stacks


def test_splash_without_a_bias_and_flash_with_one(tmp_path):
    small = {"model.num_layers": 2, "data.length": 256, "data.batch_size": 4}
    axes = [{"model.position.kind": list(KINDS)}]
    sweep = dict(base="configs/lm.py", fixed=small, axes=axes, arm="{model.position.kind}")
    code, message, arms = planned(tmp_path, sweep, "v5e:1x1", "--programs=train_step")
    assert code == 0, message
    assert {name: arm["programs"]["train_step"]["kernel"] for name, arm in arms.items()} == KINDS
    for name, kernel in KINDS.items():
        assert bool(arms[name]["programs"]["train_step"]["kernels"]) == (kernel != "reference"), name


def test_where_chips_share_tokens_only_keys_and_values_are_gathered(tmp_path):
    small = {"model.num_layers": 2, "data.batch_size": 4, "model.dtype": "bfloat16", "mesh.context": 4}
    code, message, arms = planned(
        tmp_path, dict(base="configs/lm.py", fixed=small, arm="a"), "v5e:2x2", "--programs=train_step"
    )
    assert code == 0, message
    (gathered,) = (one for one in arms["a"]["programs"]["train_step"]["collectives"] if one["kind"] == "all-gather")
    keys = 4 * 128 * 128 * 2  # rows x tokens x width of all heads x bytes; values have as many
    assert gathered["count"] == 2 * 4, "of two layers keys and values, forward and backward"
    assert gathered["bytes"] == 2 * 4 * keys


def test_an_arm_made_too_large_is_refused_with_the_two_numbers(tmp_path):
    axes = [{"data.batch_size": [32, 16384]}]
    sweep = dict(base="configs/lm.py", axes=axes, arm="b{data.batch_size}", fixed={"model.num_layers": 2})
    code, message, arms = planned(tmp_path, sweep, "v5e:1x1", "--programs=train_step")
    assert code == 1 and arms["b32"]["programs"]["train_step"]["fits"]
    large = arms["b16384"]["programs"]["train_step"]
    assert not large["fits"] and large["needed"] > large["available"] > 15 * 2**30
    line = r"^b16384: the train step does not fit: it needs [\d.]+ GiB, and a device of v5e:1x1 has 15\.\d GiB: [\d.]+ "
    assert re.search(line, message, re.MULTILINE), message
