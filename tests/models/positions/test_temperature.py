import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models import positions
from models.positions import Temperature
from tests.models.common import build, run, tiny, tokens

BY_LAYER = dict(position__temperature__kind="llama4", position__temperature__beta=2.0, position__temperature__length=3)


@pytest.mark.parametrize(
    ("kind", "length", "at"),
    [
        ("llama4", 8192, {0: 1, 8190: 1, 8191: 1 + 0.1 * math.log(2), 16383: 1 + 0.1 * math.log(3)}),
        ("ministral3", 16384, {16383: 1, 16384: 1 + 0.1 * math.log(2), 131072: 1 + 0.1 * math.log(9)}),
        ("log_n", 2048, {0: 1, 2047: 1, 2048: math.log(2049, 2048), 2048**2 - 1: 2}),
    ],
)  # fmt: skip
def test_factors(kind: str, length: int, at: dict[int, float]) -> None:
    temperature = Temperature(kind, length, 0.1, nope_only=False)
    np.testing.assert_allclose(temperature.factor(jnp.asarray(list(at))), list(at.values()), rtol=2e-6)


def test_multiplies_queries_in_float32_and_keeps_their_dtype() -> None:
    q = jax.random.normal(jax.random.key(0), (2, 5, 3, 4), jnp.bfloat16)
    temperature = Temperature("ministral3", 2, 0.5, nope_only=False)
    factor = 1 + 0.5 * np.log1p(np.arange(5) // 2)
    result = temperature(q)
    assert result.dtype == jnp.bfloat16
    expected = (np.asarray(q, np.float32) * factor[:, None, None].astype(np.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(temperature(q[:, 3:], jnp.asarray([[3, 4]])), expected[:, 3:])


def test_none_is_none_and_length_defaults_to_the_original() -> None:
    assert positions.temperature_of(tiny()) is None
    result = positions.temperature_of(tiny(position__temperature__kind="log_n"))
    assert result == Temperature("log_n", 16, 0.1, nope_only=False)


def test_llama4_acts_in_layers_without_positions_alone() -> None:
    with pytest.raises(ConfigError, match=r"temperature.layers = 'auto': llama4 would act in layers without positions"):
        tiny(position__temperature__kind="llama4")
    temperature = positions.temperature_of(tiny(position__pattern=("rope", "none"), **BY_LAYER))
    assert temperature is not None
    assert temperature.acts(positions.build(tiny(), "none")) and not temperature.acts(positions.build(tiny(), "rope"))
    everywhere = positions.temperature_of(tiny(position__temperature__layers="all", **BY_LAYER))
    assert everywhere is not None and everywhere.acts(positions.build(tiny(), "rope"))


@pytest.mark.parametrize("layers", ["all", "nope"])
def test_in_the_model_queries_alone_get_their_own_factor(layers: str) -> None:
    """What query t reads is what it would read with every query scaled by t's factor; keys stay as they are."""
    changes = dict(num_layers=1, position__kind="none", attention__qkv="split")
    heat = dict(position__temperature__kind="ministral3", position__temperature__length=2)
    plain, ids = build(tiny(**changes)), tokens(1, 7)
    result = run(build(tiny(**changes, **heat, position__temperature__layers=layers)), ids)
    kernel = plain.blocks.attention.query.kernel
    first = kernel[...]
    for t in range(7):
        kernel[...] = first * (1 + 0.1 * math.log(1 + t // 2))
        np.testing.assert_allclose(result[:, t], run(plain, ids)[:, t], atol=1e-5)


def test_in_the_model_layers_with_positions_stay_as_they_are() -> None:
    changes = dict(position__pattern=("rope", "none"), attention__qkv="split")
    plain, ids = build(tiny(**changes)), tokens(1, 2)
    at = jnp.asarray([[1000, 1001]])  # 1 + 0.1 ln 501 at both, with an original length of 2
    heat = dict(position__temperature__kind="ministral3", position__temperature__length=2)
    result = run(build(tiny(**changes, **heat, position__temperature__layers="nope")), ids, at)
    kernel = plain.blocks.attention.query.kernel
    kernel[...] = kernel[...].at[1].multiply(1 + 0.1 * math.log(501))
    np.testing.assert_allclose(result, run(plain, ids, at), atol=2e-5)
