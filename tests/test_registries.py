"""Every key of every registry is served everywhere: a case in the switches table, a formula, a strategy, the docs."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from ml_collections import ConfigDict

from configs import fields
from models.declared import attention, mlp, positions, switches
from models.kernels import KERNELS
from models.pattern import plans
from models.positions import SCHEMES, TEMPERATURES
from models.positions.rope_scaling import SCALINGS, Scaling
from tests.drawing import configs
from tests.models.common import tiny
from tests.switches import cases, written

KEYS: dict[str, set[str]] = {
    "model.position.kind": {*positions.KINDS},
    "model.position.rope.scaling.kind": {*SCALINGS},
    "model.position.temperature.kind": {"none", *TEMPERATURES},
    "model.attention.kind": {*attention.KINDS},
    "model.attention.kernel": {"auto", *KERNELS},
    "model.mlp": {*mlp.KINDS},
    "switches": {*switches.SWITCHES},
}
# Kernels of accelerators: tests of their own draw what they can run.
ELSEWHERE = {"model.attention.kernel": {"cudnn", "splash", "flash", "fused"}}
IN_TABLE = [field for field in KEYS if field.startswith(("model.position", "model.attention.kind", "switches"))]
CHOICES = [field for field in KEYS if field.startswith("model")]


def used(model: ConfigDict) -> dict[str, set[str]]:
    """Returns the keys that a resolved config.model uses, by field."""
    return {
        "model.position.kind": {plan.position for plan in plans(model)},
        "model.position.rope.scaling.kind": {model.position.rope.scaling.kind},
        "model.position.temperature.kind": {model.position.temperature.kind},
        "model.attention.kind": {model.attention.kind},
        "model.attention.kernel": {model.attention.kernel},
        "model.mlp": {model.mlp},
        "switches": {name for name, switch in switches.SWITCHES.items() if switch.on(model)},
    }


def together(models: list[ConfigDict]) -> dict[str, set[str]]:
    return {field: set().union(*(used(model)[field] for model in models)) for field in KEYS}


@pytest.mark.parametrize("field", CHOICES)
def test_what_the_config_allows_is_what_is_registered(field: str) -> None:
    assert {*fields.choices(field)} == KEYS[field]


def test_registries_of_one_choice_have_the_same_keys() -> None:
    assert [*positions.KINDS] == [*SCHEMES] == [*fields.choices("model.position.kind")]


@pytest.mark.parametrize("field", IN_TABLE)
def test_every_key_has_a_case_in_the_switches_table(field: str) -> None:
    assert together([cases.config_of(name) for name in cases.CASES])[field] >= KEYS[field]


def test_a_key_without_a_formula_is_no_zero() -> None:
    at = np.arange(3)
    for kind in ("none", "rope", "cope"):  # act elsewhere: nothing is added
        assert not written.bias(tiny(), kind, {}, at, at).any()
    with pytest.raises(ValueError, match=r"no formula .* 'ropes'"):
        written.bias(tiny(), "ropes", {}, at, at)
    scaling = tiny().position.rope.scaling
    scaling.kind = "ntk2"
    with pytest.raises(ValueError, match=r"no formula .* 'ntk2'"):
        written.scaled(scaling, np.ones(2), 1e4, 4, 8)


def test_strategies_draw_every_key() -> None:
    drawn: list[ConfigDict] = []

    @settings(max_examples=500, database=None, phases=[Phase.generate], derandomize=True)
    @given(whole=configs())
    def draw(whole: ConfigDict) -> None:
        drawn.append(whole.model)

    draw()
    result = together(drawn)
    missing = {field: keys - result[field] - ELSEWHERE.get(field, set()) for field, keys in KEYS.items()}
    assert missing == {field: set() for field in KEYS}


def test_docs_say_every_key() -> None:
    page = Path("docs/choices.md").read_text(encoding="utf-8")
    for field, keys in KEYS.items():
        assert f"`{field}`" in page or field not in CHOICES
        assert not [key for key in keys if f"| `{key}` |" not in page], field
    registries: tuple[dict[str, Any], ...] = (positions.KINDS, attention.KINDS, mlp.KINDS, switches.SWITCHES)
    for kind in (kind for registry in registries for kind in registry.values()):
        assert kind.title in page


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaling_reads_the_fields_that_it_declares(kind: str) -> None:
    """Another value of a declared field gives other frequencies or factors somewhere; of any other field, the same."""
    plain: dict[str, Any] = {"factor": 4.0, "original_length": 256, "beta_fast": 3.0, "beta_slow": 0.5,
                             "mscale": 0.8, "mscale_all_dim": 0.6,
                             "short_factor": (1.0,) * 8, "long_factor": (2.0,) * 8}  # fmt: skip
    other: dict[str, Any] = {"factor": 3.0, "original_length": 512, "beta_fast": 1.0, "beta_slow": 0.1,
                             "truncate": False, "attention_factor": 1.7, "mscale": 0.4, "mscale_all_dim": 0.9,
                             "low_freq_factor": 0.5, "high_freq_factor": 2.0,
                             "short_factor": (1.5,) * 8, "long_factor": (3.0,) * 8}  # fmt: skip

    def numbers(more: dict[str, Any]) -> np.ndarray:
        scaling, result = Scaling(kind, **{**plain, **more}), []
        for length in (8, 1000):
            inv_freq, factor = scaling.frequencies(1e4, 16, jnp.full((1, 1), length))
            result += [*np.asarray(inv_freq, np.float64).reshape(-1), factor, scaling.score_factor]
        return np.array(result)

    declared = {field.name for field in dataclasses.fields(Scaling)} - {"kind"}
    assert declared == {*other}
    changed = {name for name in declared if not np.array_equal(numbers({}), numbers({name: other[name]}))}
    assert changed == {*SCALINGS[kind].fields}
