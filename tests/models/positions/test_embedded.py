"""What acts on the embedding (learned, sinusoidal), what acts nowhere, and the registry."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.errors import ConfigError
from models import positions
from models.positions import SCHEMES, Scheme, places_of
from models.positions.sinusoidal import Sinusoidal
from tests.models.common import tiny

ZEROS = jnp.zeros((1, 5, 16))


def learned() -> Scheme:
    return positions.build(tiny(position__kind="learned", position__max_length=16), rngs=nnx.Rngs(0))


def test_sinusoidal_by_the_formula() -> None:
    result = np.asarray(Sinusoidal().embed(ZEROS))
    for p in range(5):
        for i in range(8):
            angle = p / 10000 ** (2 * i / 16)
            assert result[0, p, 2 * i] == pytest.approx(np.sin(angle), abs=1e-6)
            assert result[0, p, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-6)


def test_sinusoidal_of_odd_width_and_in_bfloat16() -> None:
    result = Sinusoidal().embed(jnp.zeros((1, 1, 5), jnp.bfloat16), jnp.asarray([[4095]]))
    angles = 4095 / 10000 ** (2 * np.arange(3) / 5)
    expected = np.stack([np.sin(angles), np.cos(angles)], -1).ravel()[:5]
    assert result.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.ravel(result).astype(float), expected, atol=5e-3)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_rows_follow_positions(kind: str) -> None:
    scheme = learned() if kind == "learned" else Sinusoidal()
    straight = np.asarray(scheme.embed(ZEROS))
    np.testing.assert_allclose(scheme.embed(ZEROS, jnp.arange(5)[None]), straight, rtol=1e-6)
    places = [3, 0, 4, 1, 1]
    np.testing.assert_allclose(scheme.embed(ZEROS, jnp.asarray([places])), straight[:, places], rtol=1e-6)


def test_learned_refuses_lengths_beyond_its_rows() -> None:
    scheme = learned()
    scheme.embed(jnp.zeros((1, 16, 16)))
    for places, length in ((None, 17), (jnp.asarray([[15, 16]]), 2)):
        with pytest.raises(ConfigError, match=r"length 17.*16 rows.*max_length"):
            scheme.embed(jnp.zeros((1, length, 16)), places)
    with pytest.raises(ConfigError, match="length 17"):
        jax.jit(scheme.embed)(jnp.zeros((1, 17, 16)))


def test_learned_makes_up_no_rows_for_traced_positions() -> None:
    result = jax.jit(learned().embed)(ZEROS, jnp.asarray([[0, 15, 16, -1, 99]]))
    np.testing.assert_array_equal(np.isnan(result).all(-1), [[False, False, True, True, True]])
    assert np.isfinite(result[:, :2]).all()


def test_each_scheme_says_where_it_acts() -> None:
    """What a scheme does not name in `places` it does not override, so a model may leave it out."""
    for kind in SCHEMES:
        scheme = positions.class_of(kind)
        overridden = {
            name
            for name in ("embed", "rotate", "bias", "scores")
            if inspect.getattr_static(scheme, name) is not vars(Scheme)[name]
        }
        assert overridden == places_of(kind), kind
    assert places_of("none") == frozenset() and places_of("rope") == {"rotate"}


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model.position.kind = 'sinusodial'.*did you mean sinusoidal"):
        positions.build(tiny(), "sinusodial")


def test_parameters_need_a_seed() -> None:
    with pytest.raises(ValueError, match="rngs must be given"):
        positions.build(tiny(position__kind="learned"))
