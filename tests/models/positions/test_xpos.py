import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models import positions
from models.positions.xpos import XPos
from tests.models.common import normal, tiny


def scheme(**changes: object) -> XPos:
    result = positions.build(tiny(position__kind="xpos", head_dim=8, **changes))
    assert isinstance(result, XPos)
    return result


def scores(xpos: XPos, q: jax.Array, k: jax.Array, at: int, back: int) -> np.ndarray:
    rotated = xpos.rotate(q, jnp.full((1, 1), at)), xpos.rotate(k, jnp.full((1, 1), at - back), keys=True)
    return np.asarray(jnp.einsum("bthk,bthk->h", *rotated))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("back", [0, 1, 100, 700])
def test_score_is_the_papers_and_depends_on_distance_alone(pairing: str, back: int) -> None:
    xpos = scheme(position__rope__pairing=pairing)
    q, k = normal((2, 1, 1, 3, 8))
    pairs = [(i, i + 4) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(4)]
    expected = np.zeros(3)
    for i, (a, b) in enumerate(pairs):
        zeta, w = (2 * i / 8 + 0.4) / 1.4, 10000.0 ** (-2 * i / 8)
        product = (np.asarray(q[0, 0, :, a], np.complex128) + 1j * np.asarray(q[0, 0, :, b])) * np.conj(
            np.asarray(k[0, 0, :, a]) + 1j * np.asarray(k[0, 0, :, b])
        )
        expected += (zeta ** (back / 512) * product * np.exp(1j * w * back)).real
    for at in (back, 1500, 9000, 16_383):
        np.testing.assert_allclose(scores(xpos, q, k, at, back), expected, rtol=1e-3, atol=6e-3 if at > 2000 else 6e-4)


def test_zeta_of_pair_zero() -> None:
    xpos, one = scheme(), jnp.zeros((1, 1, 1, 8)).at[..., 0].set(1.0)
    assert scores(xpos, one, one, 512, 0)[0] == pytest.approx(1.0, rel=1e-5)
    stretched = xpos.rotate(one, jnp.full((1, 1), 512))
    assert float(jnp.linalg.norm(stretched)) == pytest.approx(0.4 / 1.4, rel=1e-5)
    shrunk = xpos.rotate(one, jnp.full((1, 1), 512), keys=True)
    assert float(jnp.linalg.norm(shrunk)) == pytest.approx(1.4 / 0.4, rel=1e-5)


def test_refuses_what_float32_does_not_hold() -> None:
    xpos = scheme()
    xpos.check(16_384)
    with pytest.raises(ConfigError, match="length 16385: xPos reaches 16384 positions"):
        xpos.check(16_385)
    with pytest.raises(ConfigError, match=r"xpos.base = 0.25: reaches 8 positions"):
        scheme(position__xpos__base=0.25)


def test_gradients_survive_at_the_furthest_position() -> None:
    xpos = scheme()
    q, k = 1e-3 * normal((2, 1, 1, 1, 8))

    def score(q: jax.Array, k: jax.Array) -> jax.Array:
        at = jnp.full((1, 1), 16_383)
        return 1e-3 * jnp.sum(xpos.rotate(q, at) * xpos.rotate(k, at, keys=True))

    d_q, d_k = jax.grad(score, (0, 1))(q, k)
    np.testing.assert_allclose(d_q, 1e-3 * k, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(d_k, 1e-3 * q, rtol=1e-3, atol=1e-9)
