import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models import positions
from models.positions.p_rope import PRope
from tests.models.common import normal, tiny


def scheme(**changes: object) -> PRope:
    result = positions.build(tiny(position__kind="p_rope", **{"head_dim": 8, **changes}))
    assert isinstance(result, PRope)
    return result


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.5, [1, 0.1, 0, 0]), (0.75, [1, 0.1, 0.01, 0]), (1.0, [1, 0.1, 0.01, 0.001]), (0.3, [1, 0, 0, 0])],
)
def test_frequencies(fraction: float, expected: list[float]) -> None:
    p_rope = scheme(position__rope__fraction=fraction)
    cos, sin = p_rope.cos_sin(jnp.ones((1, 1), jnp.int32))
    np.testing.assert_allclose(np.arctan2(sin, cos)[0, 0], expected, rtol=1e-5)


def test_pairs_span_the_whole_head_unlike_partial_rotary() -> None:
    x = normal((1, 5, 2, 8))
    rotated = np.asarray(scheme(position__rope__fraction=0.5).rotate(x))
    angle = np.arange(5)[:, None] * np.array([1, 0.1, 0, 0])
    pairs = (np.asarray(x)[..., :4] + 1j * np.asarray(x)[..., 4:]) * np.exp(1j * angle)[None, :, None]
    np.testing.assert_allclose(rotated, np.concatenate([pairs.real, pairs.imag], -1), atol=1e-5)
    partial = positions.build(tiny(head_dim=8, position__rope__fraction=0.5)).rotate(x)
    np.testing.assert_array_equal(partial[..., 4:], x[..., 4:])
    assert np.abs(rotated[0, 1:, :, 4:6] - np.asarray(x)[0, 1:, :, 4:6]).max() > 0.1
    whole = positions.build(tiny(head_dim=8)).rotate(x)
    np.testing.assert_allclose(scheme(position__rope__fraction=1.0).rotate(x), whole, atol=1e-6)


def test_scaling_acts_on_what_turns() -> None:
    changes = dict(
        position__rope__fraction=0.5, position__rope__scaling__kind="linear", position__rope__scaling__factor=4.0
    )
    cos, sin = scheme(**changes).cos_sin(jnp.ones((1, 1), jnp.int32))
    np.testing.assert_allclose(np.arctan2(sin, cos)[0, 0], [0.25, 0.025, 0, 0], rtol=1e-5)


def test_refuses_to_keep_nothing() -> None:
    with pytest.raises(ConfigError, match=r"fraction = 0.1: keeps no frequency"):
        scheme(position__rope__fraction=0.1)
    with pytest.raises(ConfigError, match="head_dim = 7"):
        scheme(head_dim=7)
