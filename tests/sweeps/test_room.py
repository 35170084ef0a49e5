"""Arms that a machine cannot hold are refused before anything is launched, with both numbers."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from configs import cli, fields, validate
from configs.errors import ConfigError
from eval.cost import memory
from sweeps import launch
from sweeps.execution import memory_check
from sweeps.launchers import resources
from sweeps.launchers.resources import Machine
from sweeps.plans import targets
from sweeps.spec import expand
from tests.sweeps.test_launch import FAKES
from training.devices import memory as machine_memory
from training.step import train_step


def resolved(**overrides):
    return validate.resolve(cli.load("configs/tiny.py", {k.replace("__", "."): v for k, v in overrides.items()}))


def sweep_of(widths, seeds=(0, 1)):
    given = dict(
        base="configs/tiny.py", axes=[{"model.width": list(widths)}], arm="w{model.width}", seeds=list(seeds),
        evals=["loss"],
    )  # fmt: skip
    return expand.expand(given, file=Path("my.py"))


@pytest.fixture
def machine(monkeypatch):
    """Has the launcher find a CPU with as much memory as is set."""
    here = SimpleNamespace(memory=2**33)
    monkeypatch.setattr(resources, "machine", lambda: Machine("cpu", 1, 2, here.memory))
    return here


@pytest.mark.parametrize("kind", fields.choices("optimizer.kind"))
@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_what_is_held_is_what_the_memory_evaluation_counts(kind, attention):
    schedule = "constant" if kind == "schedule_free_adamw" else "cosine"
    config = resolved(model__attention__kind=attention, optimizer__kind=kind, optimizer__schedule=schedule)
    of = memory.formula(SimpleNamespace(config=config))
    held = memory_check.held(config, Machine("cpu", 1, 2))
    assert held == of["parameters"] + of["gradients"] + of["optimizer"]
    state = train_step.abstract(config).opt_state
    assert of["optimizer"] == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    config.optimizer.clip_norm = 0.0  # a gradient's parts may then go as soon as they are used
    assert memory_check.held(config, Machine("cpu", 1, 2)) == held - of["gradients"]
    config.data.micro_batches = 2
    assert memory_check.held(config, Machine("cpu", 1, 2)) == held


def test_devices_of_a_mesh_divide_it_where_they_have_memories_of_their_own():
    config = resolved(model__num_kv_heads=2)
    whole = memory_check.held(config, Machine("gpu", 8, 2))
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = 2, -1, 2
    assert memory_check.held(config, Machine("gpu", 8, 2)) == whole // 4
    assert memory_check.held(config, Machine("cpu", 8, 2)) == whole
    config.model.vocab_size = None
    assert memory_check.held(config, Machine("cpu", 1, 2)) < whole


def test_a_launch_refuses_arms_that_cannot_fit_and_begins_none(tmp_path, machine):
    machine.memory = 20 * 2**20
    with pytest.raises(ConfigError) as caught:
        launch.launch(sweep_of([16, 256, 512]), tmp_path / "out", workers=1, functions=FAKES)
    message = str(caught.value).splitlines()
    assert [line.split()[0] for line in message] == ["w256", "w512"]
    parts = r"w512 does not fit: its parameters, gradients and optimizer alone need [\d.]+ MiB"
    assert (
        re.match(parts + r", and this machine has 20\.0 MiB ", message[1]) and "sweeps.plan --sweep=my.py" in message[1]
    ), message
    assert not (tmp_path / "out").exists()


def test_arms_that_are_through_are_let_be(tmp_path, machine):
    sweep = sweep_of([512])
    for seed, status in enumerate(["done", "diverged"]):
        folder = tmp_path / f"runs/w512/seed{seed}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"status": status}))
    small = Machine("cpu", 1, 2, 2**20)
    memory_check.check(sweep, tmp_path, small)
    with pytest.raises(ConfigError, match=r"this gpu has 1\.0 MiB"):
        memory_check.check(sweep_of([512], seeds=(0, 1, 2)), tmp_path, Machine("gpu", 1, 2, 2**20))
    memory_check.check(sweep, tmp_path / "new", Machine("tpu", 1, 2, 0))  # nothing tells


def test_an_accelerator_is_asked_for_its_memory(monkeypatch):
    answer = SimpleNamespace(returncode=0, stdout="a warning\ncuda 2 17000000000\n")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(resources.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(resources.subprocess, "run", lambda *_, **__: answer)
    ask = resources.machine.__wrapped__
    assert ask() == Machine("gpu", 2, resources.cores(), 17_000_000_000)
    answer.stdout = "cpu 1 0\n"
    assert ask() == Machine("cpu", 1, resources.cores(), resources.memory()) and resources.memory() > 2**28
    assert targets.open_target("cpu").capacity == resources.memory()


def test_a_container_may_have_less_than_its_machine(tmp_path, monkeypatch):
    given = tmp_path / "memory.max"
    monkeypatch.setattr(machine_memory, "Path", lambda _: given)
    monkeypatch.setattr(resources.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**34))
    for limit, result in (("max\n", 2**34), (f"{2**30}\n", 2**30), (f"{2**60}\n", 2**34)):
        given.write_text(limit)
        assert resources.memory() == result
