"""What the environment says does not change a result: pinned, or recorded, marked and refused on resume."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import environment
from configs.errors import UserError
from report.claims import comparable
from report.reading.directories import read
from tests.report import synthetic
from training.loop import trainer
from training.runtime import settings, startup

CHECKOUT = Path(__file__).resolve().parents[2]
FLAG = "--xla_cpu_enable_fast_math=true"


@functools.cache
def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **env}
    return subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, env=whole, capture_output=True, text=True)


DRAW = """
import sys
from configs import environment
if sys.argv[1:] != ["unpinned"]:
    environment.pin()
import jax, jax.numpy as jnp
from training.runtime import settings
settings.pin()
print(jax.random.normal(jax.random.key(0), (3, 3)).tolist(), jnp.arange(3.0).dtype, jax.jit(jnp.sin)(2.0).dtype)
"""
OTHERWISE = {
    "JAX_ENABLE_X64": "1", "JAX_THREEFRY_PARTITIONABLE": "0", "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_RANDOM_SEED_OFFSET": "7", "JAX_DEFAULT_MATMUL_PRECISION": "highest", "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise", "JAX_DISABLE_JIT": "1", "JAX_SOFTMAX_CUSTOM_JVP": "1",
    "JAX_LEGACY_PRNG_KEY": "error", "JAX_ENABLE_CUSTOM_PRNG": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_HIGH_DYNAMIC_RANGE_GUMBEL": "1",
}  # fmt: skip


def test_every_pinned_setting_has_a_case() -> None:
    assert {name.upper() for name in environment.PINNED} == set(OTHERWISE)
    # The pins are JAX's own defaults, as far as its source gives them as plain values.
    known = settings.defaults()
    assert {name: known[name] for name in environment.PINNED if name in known}.items() <= environment.PINNED.items()
    assert len(known) > 50


def test_what_draws_numbers_and_sets_precision_is_not_the_environments() -> None:
    plain = python(DRAW)
    changed = python(DRAW, **OTHERWISE)
    assert plain.returncode == 0, plain.stderr
    assert changed.stdout == plain.stdout
    for name, text in OTHERWISE.items():
        assert f"{name}={text} has no effect" in changed.stderr
    assert "has no effect" not in python(DRAW, JAX_ENABLE_X64="false", JAX_DEFAULT_PRNG_IMPL="threefry2x32").stderr


def test_it_is_pinned_also_where_jax_was_there_before() -> None:
    before = "import jax\n" + DRAW.replace("environment.pin()", "pass")
    assert python(before, **OTHERWISE).stdout == python(DRAW).stdout
    # The control: without the pin it does change.
    unpinned = before.replace("settings.pin()", "")
    assert python(unpinned, JAX_THREEFRY_PARTITIONABLE="0").stdout != python(DRAW).stdout


def test_settings_that_are_not_the_default_are_recorded(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count=2 {FLAG} --xla_x")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with jax.debug_nans(True):
        result = settings.in_force()
    assert result["XLA_FLAGS --xla_cpu_enable_fast_math"] == "true" and result["XLA_FLAGS --xla_x"] == "true"
    assert result["NVIDIA_TF32_OVERRIDE"] == "1"
    assert "JAX_COMPILATION_CACHE_DIR" not in result and "JAX_ENABLE_X64" not in result
    matter = environment.relevant(result)
    assert {"XLA_FLAGS --xla_cpu_enable_fast_math", "XLA_FLAGS --xla_x", "NVIDIA_TF32_OVERRIDE"} <= {*matter}
    assert "XLA_FLAGS --xla_force_host_platform_device_count" not in matter
    with jax.transfer_guard("log"):
        assert settings.in_force()["JAX_TRANSFER_GUARD"] == "log"
    assert "JAX_TRANSFER_GUARD" not in settings.in_force()


def test_a_resume_under_other_settings_is_refused_by_name(make_tiny, tmp_path, monkeypatch) -> None:
    config = make_tiny(budget__amount=4, checkpoint__every_steps=2)
    trainer.train(config, tmp_path / "run", quiet=True)
    path = tmp_path / "run/run.json"
    values = json.loads(path.read_text())
    assert values["jax_settings"] == settings.in_force()
    # As it is where it was stopped.
    path.write_text(json.dumps(values | {"status": "preempted"}))
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setattr(startup, "flags", lambda: None)
    monkeypatch.setenv("XLA_FLAGS", f"{flags} {FLAG}")
    with pytest.raises(UserError, match=r"XLA_FLAGS --xla_cpu_enable_fast_math is unset there and true here"):
        trainer.train(config, tmp_path / "run", quiet=True)
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_dump_to=/tmp/x")  # says nothing of numbers
    assert trainer.train(config, tmp_path / "run", quiet=True)["status"] == "done"
    path.write_text(
        json.dumps({key: value for key, value in values.items() if key != "jax_settings"} | {"status": "failed"})
    )
    assert trainer.train(config, tmp_path / "run", quiet=True)["status"] == "done"  # of an earlier version


def test_the_report_marks_arms_that_ran_under_other_settings(tmp_path) -> None:
    for name, result in {"a": {}, "b": {"XLA_FLAGS --xla_x": "1"}, "c": {"JAX_PLATFORMS": "cpu"}, "d": 5}.items():
        info = synthetic.run_json(0, jax_settings=result)
        synthetic.write_run(tmp_path / "runs" / name / "seed0", info=info, evals={"loss": synthetic.loss_json(1.8)})
    arms = {name: synthetic.config(1) for name in "abcd"}
    sweep = read(synthetic.write_sweep(tmp_path, [synthetic.study_json("s", arms, [0], baseline="a")]))
    shown = {
        name: " ".join(mark.words for mark in result) for name, result in comparable.marks(sweep.studies[0]).items()
    }
    assert "XLA_FLAGS --xla_x=1" in shown["b"] and "settings of JAX and XLA" in shown["b"]
    assert "settings" not in shown["c"] and "settings" not in shown["d"]


COMMANDS = [
    ["train.py", "--config=configs/tiny.py", "--workdir={}"],
    ["-m", "sweeps.launch", "--sweep=configs/sweeps/demo.py", "--out={}"],
    ["-m", "sweeps.plan", "--sweep=configs/sweeps/demo.py"],
    ["-m", "eval.run", "--workdir={}", "--evals=loss"],
]


UNKNOWN = {
    "JAX_PLATFORMS=cuda": r"error: JAX_PLATFORMS=cuda: JAX does not start here: .+",
    "XLA_FLAGS=--xla_nosuch=1": r"error: XLA_FLAGS=--xla_nosuch=1: XLA [\d.]+ does not know --xla_nosuch=1",
}
# A process each: `train` with both, the other commands with one of them; with the other too where there is time.
QUICK = {("train", "JAX"), ("train", "XLA"), ("launch", "JAX"), ("plan", "XLA"), ("eval", "JAX")}
STARTS = [
    pytest.param(command, variable, id=f"{variable[:3]}-{name}", marks=[] if quick else [pytest.mark.slow])
    for name, command in zip(["train", "launch", "plan", "eval"], COMMANDS, strict=True)
    for variable in UNKNOWN
    for quick in [(name, variable[:3]) in QUICK]
]


@pytest.mark.parametrize(("command", "variable"), STARTS)
def test_a_jax_that_does_not_start_is_one_clear_line(tmp_path, command, variable) -> None:
    if variable == "JAX_PLATFORMS=cuda" and "gpu" in {device.platform for device in jax.devices()}:
        pytest.skip("there is a GPU here")
    name, _, value = variable.partition("=")
    arguments = [part.format(tmp_path / "out") for part in command]
    env = {key: text for key, text in os.environ.items() if key != "JAX_PLATFORMS"} | {name: value}
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(UNKNOWN[variable], done.stderr.strip()), done.stderr
    assert not (tmp_path / "out").exists()


def test_another_trees_checkpoint_is_refused_in_a_line(make_tiny, tmp_path) -> None:
    own = make_tiny(budget__amount=4, checkpoint__every_steps=2)
    others = {
        "wider": (make_tiny(budget__amount=4, model__width=32), r"params .* has shape"),
        "other seed": (make_tiny(budget__amount=4, seed=7), r"the same shapes, but was trained with seed = 7, here 0"),
        "other theta": (
            make_tiny(budget__amount=4, model__position__rope__theta=500.0),
            r"same shapes, but was trained with model\.position\.rope\.theta = 500\.0",
        ),
    }  # fmt: skip
    trainer.train(own, tmp_path / "mine", quiet=True)
    for name, (config, message) in others.items():
        trainer.train(config, tmp_path / name, quiet=True)
        place = shutil.copytree(tmp_path / "mine", tmp_path / f"{name} mine")
        path = place / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "preempted"}))
        (place / "checkpoints").rename(place / "own")
        (tmp_path / name / "checkpoints").rename(place / "checkpoints")
        with pytest.raises(UserError, match=message) as error:
            trainer.train(own, place, quiet=True)
        assert len(str(error.value).splitlines()) == 1
        # The control: its own is taken.
        (place / "checkpoints").rename(place / "foreign")
        (place / "own").rename(place / "checkpoints")
        assert trainer.train(own, place, quiet=True)["status"] == "done"
