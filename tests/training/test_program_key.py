"""Compiled programs are shared by equal keys only, and the key holds every field that a program can depend on."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import optax
import pytest
from ml_collections import ConfigDict

from configs import base, fields, validate
from configs.schema import ARGUMENT, NONE, field
from training.loop import trainer
from training.step import train_step as step

# For every field of the optimizer: another value, and what else must be set for it to have an effect.
CHANGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "kind": (None, {}),  # each against adamw
    "learning_rate": (3e-3, {}),
    "schedule": ("constant", {}),
    "warmup_steps": (3, {}),
    "decay_share": (0.8, {"optimizer__schedule": "wsd"}),
    "final_share": (0.9, {}),
    "beta1": (0.3, {}),
    "beta2": (0.3, {}),
    "eps": (0.1, {}),
    "weight_decay": (20.0, {}),
    "clip_norm": (0.01, {"optimizer__eps": 0.1}),
    "z_loss": (1.0, {}),
    "muon.learning_rate": (0.3, {"optimizer__kind": "muon"}),
    "muon.momentum": (0.3, {"optimizer__kind": "muon"}),
    "muon.nesterov": (False, {"optimizer__kind": "muon"}),
    "muon.steps": (2, {"optimizer__kind": "muon"}),
    "adafactor.decay_rate": (0.3, {"optimizer__kind": "adafactor"}),
    "adafactor.clip_threshold": (0.1, {"optimizer__kind": "adafactor"}),
    "adafactor.factor_from": (8, {"optimizer__kind": "adafactor"}),
    "adafactor.parameter_scale": (False, {"optimizer__kind": "adafactor"}),
}
# Outside config.model, all of which is static: the fields that shape a program.
STATIC = {
    *("data.micro_batches", "mesh.data", "mesh.fsdp", "mesh.context", "mesh.tensor", "mesh.kv_heads"),
    *(f"optimizer.{name}" for name in ("kind", "beta1", "beta2", "eps", "weight_decay", "clip_norm", "z_loss")),
    *(f"optimizer.muon.{name}" for name in ("momentum", "nesterov", "steps")),
    *(f"optimizer.adafactor.{name}" for name in ("decay_rate", "clip_threshold", "factor_from", "parameter_scale")),
}


def forget(patch: pytest.MonkeyPatch) -> None:
    """Gives the process empty caches of compiled training programs, until `patch` is undone."""
    patch.setattr(step, "_COMPILED", {})
    for name in ("_jitted", "_opt_state", "_loss_function"):
        cached = getattr(step, name)
        patch.setattr(step, name, functools.lru_cache(**cached.cache_parameters())(cached.__wrapped__))


def loss(config: ConfigDict, folder: Path) -> float:
    trainer.train(config, folder, quiet=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train_loss"] for line in lines if "train_loss" in line][-1]


def test_every_field_of_the_optimizer_is_changed_below() -> None:
    of_schema = {name.removeprefix("optimizer.") for name in fields.types() if name.startswith("optimizer.")}
    assert set(CHANGED) == of_schema, "give a new field another value in CHANGED"


SHORT = {
    **{"budget__amount": 5, "log__every_steps": 1, "eval__every_steps": 0, "checkpoint__every_steps": 0},
    **{"optimizer__warmup_steps": 1, "model__num_layers": 1, "eval__tokens": 64, "eval__multiples": (1,)},
}


# Trains a plain config, of these overrides, and keeps its programs for what is trained after it; returns the loss.
Before = Callable[..., float]


@pytest.fixture(scope="module")
def before(make_tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    with pytest.MonkeyPatch.context() as patch:
        forget(patch)

        @functools.cache
        def trained(**overrides: Any) -> float:
            return loss(make_tiny(**SHORT | overrides), tmp_path_factory.mktemp("plain"))

        yield trained


def check_alone_and_after(first: float, changed: ConfigDict, folder: Path) -> None:
    """Trains `changed` after the plain config, whose loss is `first`, and with no compiled program: the same losses."""
    second = loss(changed, folder / "after")
    with pytest.MonkeyPatch.context() as patch:
        forget(patch)
        assert loss(changed, folder / "alone") == second
    assert first != second, "the changed value has no effect here: choose another"


@pytest.mark.parametrize("name", [name for name in CHANGED if name != "kind"])
def test_a_second_run_in_the_process_trains_as_it_would_alone(tiny, tmp_path: Path, before: Before, name: str) -> None:
    value, needed = CHANGED[name]
    changed = tiny(**SHORT | needed | {f"optimizer__{name}": value})
    check_alone_and_after(before(**needed), changed, tmp_path)


@pytest.mark.parametrize("kind", fields.choices("optimizer.kind")[1:])
def test_another_optimizer_trains_as_it_would_alone(tiny, tmp_path: Path, before: Before, kind: str) -> None:
    needed = {"optimizer__schedule": "constant"}
    changed = tiny(**SHORT | needed, optimizer__kind=kind)
    check_alone_and_after(before(**needed), changed, tmp_path)


def other_value(value: Any, kind: type) -> Any:
    """Returns a value of the type that is not `value`; it need not be allowed."""
    if kind is str:
        return f"{value}-other"
    if kind is tuple:
        return (*(value or ()), 3)
    return not value if kind is bool else kind((value or 0) + 2)


def test_changing_a_field_changes_the_key_or_the_field_is_declared_without_effect(tiny) -> None:
    config = validate.resolve(tiny())
    key, free = step.shaping(config), set()
    for name, value, _ in list(fields.walk(config)):
        changed = fields.from_dict(fields.to_dict(config))
        fields.set_field(changed, name, other_value(value, fields.types()[name]))
        if step.shaping(changed) == key:
            free.add(name)
    assert free == {name for name, field in base.SCHEMA.items() if field.program in (ARGUMENT, NONE)}
    assert {name for name in fields.types() if not name.startswith("model.")} - free == STATIC


def nesterov(optimizer: ConfigDict, *_: Any, **__: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.eps, nesterov=optimizer.nesterov)


def test_a_new_field_is_static_until_it_declares_something_else(tiny, tmp_path: Path, monkeypatch) -> None:
    added, schema = "optimizer.nesterov", base.SCHEMA
    forget(monkeypatch)  # of the optimizer that is patched here
    monkeypatch.setattr(step.optimizers, "make", nesterov)
    monkeypatch.setattr(base, "SCHEMA", schema.adding(added, field(False, "Adam with Nesterov's momentum")))
    plain, changed = (tiny(**SHORT, optimizer__nesterov=value) for value in (False, True))
    check_alone_and_after(loss(plain, tmp_path / "plain"), changed, tmp_path)
    # A wrong declaration is no wrong number either: the program cannot read the field.
    monkeypatch.setattr(base, "SCHEMA", schema.adding(added, field(False, "the same", program=ARGUMENT)))
    with pytest.raises(AttributeError, match="nesterov"):
        loss(changed, tmp_path / "wrong")


def test_a_program_is_built_from_the_fields_of_its_key_alone(tiny) -> None:
    config = validate.resolve(tiny())
    config.model.vocab_size = 27
    seen = fields.program_config(fields.program_values(config))
    jax.jit(step.step_function(seen)).lower(*step.arguments(config))
    with pytest.raises(AttributeError):
        _ = seen.optimizer.learning_rate
