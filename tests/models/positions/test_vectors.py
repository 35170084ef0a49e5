"""Every RoPE scaling against inverse frequencies and factors that transformers computed (rope_inv_freq.json)."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models.positions.rope_scaling import Scaling
from tests.models.common import tiny

CASES = json.loads((Path(__file__).parent / "rope_inv_freq.json").read_text())["cases"]


def scaling_of(case: dict[str, Any]) -> Scaling:
    given = dict(case["rope_parameters"])
    given.pop("rope_theta")
    kind = given.pop("rope_type")
    length = given.pop("original_max_position_embeddings", case["max_position_embeddings"])
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Scaling(kind="none" if kind == "default" else kind, original_length=length, **given)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_frequencies_and_factor_are_those_of_transformers(case: dict[str, Any]) -> None:
    lengths = None if case["seq_len"] is None else jnp.full((1, 1), case["seq_len"], jnp.int32)
    theta = case["rope_parameters"]["rope_theta"]
    inv_freq, factor = scaling_of(case).frequencies(theta, case["head_dim"], lengths)
    np.testing.assert_allclose(np.ravel(inv_freq), case["inv_freq"], rtol=1e-6, atol=0)
    np.testing.assert_allclose(factor, case["attention_factor"], rtol=1e-6)


def test_longrope_takes_each_tokens_own_length() -> None:
    scaling = Scaling("longrope", factor=4.0, original_length=32, short_factor=(1.0, 1.1), long_factor=(2.0, 5.0))
    inv_freq, factor = scaling.frequencies(10000.0, 4, jnp.asarray([[32, 33, 1, 64]]))
    short, long = np.array([1.0, 0.01 / 1.1]), np.array([0.5, 0.002])
    np.testing.assert_allclose(inv_freq, np.stack([short, long, short, long])[None], rtol=1e-6)
    assert factor == pytest.approx(np.sqrt(1 + np.log(4) / np.log(32)), rel=1e-12)


@pytest.mark.parametrize(("changes", "factor"), [({"factor": 1.0}, 1.0), ({"attention_factor": 1.5}, 1.5)])
def test_longropes_factor(changes: dict[str, float], factor: float) -> None:
    lists = dict(short_factor=(1.0,), long_factor=(2.0,))
    scaling = Scaling("longrope", **{"factor": 4.0, "original_length": 32, **lists, **changes})  # type: ignore[arg-type]
    assert scaling.frequencies(10000.0, 2, jnp.ones((1, 1), jnp.int32))[1] == factor


def test_longrope_needs_a_number_a_pair() -> None:
    with pytest.raises(ConfigError, match=r"long_factor.*each of the 2 rotary pairs, not 1"):
        Scaling("longrope", 2.0, 8, short_factor=(1.0, 1.0), long_factor=(1.0,)).frequencies(
            1e4, 4, jnp.ones((1, 1), jnp.int32)
        )
    with pytest.raises(ConfigError, match=r"scaling.short_factor = \(\): longrope needs a number"):
        tiny(position__rope__scaling__kind="longrope", position__rope__scaling__factor=2.0)


def test_ntk_by_parts_ramps_in_rotations() -> None:
    theta, r, length, s = 10000.0, 64, 2048, 8.0
    inv_freq, factor = Scaling("ntk_by_parts", s, length).frequencies(theta, r)
    assert factor == 1.0
    for i, result in enumerate(np.asarray(inv_freq)):
        w = theta ** (-2 * i / r)
        rotations = length * w / (2 * np.pi)
        if rotations < 1:
            expected = w / s
        elif rotations > 32:
            expected = w
        else:
            share = (rotations - 1) / 31
            expected = (1 - share) * w / s + share * w
        assert result == pytest.approx(expected, rel=1e-6)
    ramp = np.asarray(inv_freq) * s / theta ** (-2 * np.arange(r // 2) / r)
    assert ramp[0] == pytest.approx(s) and ramp[-1] == pytest.approx(1) and len(set(ramp.round(4))) > 5
