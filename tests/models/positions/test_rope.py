"""RoPE: what follows from turning, in both pairings (test_rope_faults holds numbers computed by hand)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from models import positions
from models.positions.rope import Rope
from models.positions.rope_scaling import Scaling
from tests.models.common import normal, tiny


def rope(rotary_dim: int = 8, pairing: str = "half", theta: float = 1e4, scaling: Scaling | None = None) -> Rope:
    return Rope(theta, rotary_dim, pairing, scaling or Scaling())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 5000), st.sampled_from(["half", "interleaved"]))
def test_scores_depend_on_distance_alone(i: int, j: int, shift: int, pairing: str) -> None:
    q, k = (normal((1, 1, 1, 10), seed) for seed in (0, 1))
    scheme = rope(8, pairing)  # two dims do not turn

    def score(i: int, j: int) -> float:
        turned_q, turned_k = (scheme.rotate(x, jnp.full((1, 1), p)) for x, p in ((q, i), (k, j)))
        return float(jnp.vdot(turned_q, turned_k))

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=5e-3)
    norm = float(jnp.linalg.norm(scheme.rotate(q, jnp.full((1, 1), i))))
    assert norm == pytest.approx(float(jnp.linalg.norm(q)), rel=1e-5)


def test_pairings_are_one_another_permuted() -> None:
    x = normal((2, 5, 3, 8))
    order = np.asarray([0, 4, 1, 5, 2, 6, 3, 7])  # interleaved dim 2i is half's dim i, 2i + 1 is i + r/2
    half, interleaved = rope(pairing="half").rotate(x), rope(pairing="interleaved").rotate(x[..., order])
    np.testing.assert_allclose(interleaved, half[..., order], rtol=1e-6)


def test_partial_rotary_keeps_the_rest_and_divides_by_r() -> None:
    scheme: Any = positions.build(tiny(head_dim=8, position__rope__fraction=0.5))
    assert scheme.rotary_dim == 4
    np.testing.assert_allclose(scheme.scaling.frequencies(scheme.theta, 4)[0], [1, 0.01], rtol=1e-6)
    x = normal((1, 5, 1, 8))
    rotated = scheme.rotate(x)
    np.testing.assert_array_equal(rotated[..., 4:], x[..., 4:])
    np.testing.assert_array_equal(rotated[..., :4], rope(4).rotate(x[..., :4]))


def test_rotary_width_rounds_down() -> None:
    scheme: Any = positions.build(tiny(head_dim=10, position__rope__fraction=0.45))
    assert scheme.rotary_dim == 4


@pytest.mark.fault(1)
@pytest.mark.parametrize("position", [257, 4095])
def test_angles_are_float32_in_bfloat16(position: int) -> None:
    """Fault 1: bfloat16 makes 257 into 256 and 4095 into 4096: cos(4095) = -.0660, cos(4096) = .8040."""
    x = jnp.asarray([1.0, 0.0], jnp.bfloat16).reshape(1, 1, 1, 2)
    rotated = rope(2).rotate(x, jnp.full((1, 1), position))
    assert rotated.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.ravel(rotated).astype(float), [np.cos(position), np.sin(position)], atol=2**-8)


def test_no_positions_are_row_numbers_and_rows_may_differ() -> None:
    x = normal((2, 4, 2, 8))
    np.testing.assert_array_equal(rope().rotate(x), rope().rotate(x, jnp.arange(4)[None]))
    both = rope().rotate(x, jnp.asarray([[0, 1, 2, 3], [9, 0, 1, 7]]))
    np.testing.assert_allclose(both[1, 3], rope().rotate(x[1:, 3:], jnp.asarray([[7]]))[0, 0], rtol=1e-6)


@pytest.mark.fault(22)
def test_theta_is_part_of_what_it_is() -> None:
    """Fault 22: a table cached without theta in its key; compiled programs are kept by the scheme's value."""
    x = normal((1, 9, 1, 8))
    assert rope(theta=1e4) == rope(theta=1e4) != rope(theta=5e5)
    turn = jax.jit(lambda scheme, x: scheme.rotate(x), static_argnums=0)
    assert np.abs(turn(rope(theta=1e4), x) - turn(rope(theta=5e5), x)).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"fraction": 0.3}, "rotary width 1.*even"), ({"pairing": "halves"}, "half or interleaved")],
)
def test_refuses(changes: dict[str, Any], words: str) -> None:
    config = tiny()
    config.position.rope.update(changes)
    with pytest.raises(ConfigError, match=words):
        positions.build(config)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_gradient_is_that_of_the_matrix(pairing: str) -> None:
    """Turning is linear: its own derivative, told to JAX, against the matrix that it is, taken column by column."""
    rope = Rope(theta=100.0, rotary_dim=6, pairing=pairing, scaling=Scaling())
    positions = jnp.asarray([[3, 17]])
    columns = jnp.eye(8).reshape(8, 1, 1, 1, 8)
    rotated = jax.vmap(lambda x: rope.rotate(jnp.broadcast_to(x, (1, 2, 1, 8)), positions))(columns)
    d_out = normal((1, 2, 1, 8), 1)
    d_x = jax.vjp(lambda x: rope.rotate(x, positions), normal((1, 2, 1, 8), 0))[1](d_out)[0]
    np.testing.assert_allclose(
        d_x[0, :, 0], jnp.einsum("xathj,ahtj->tx", rotated, d_out.swapaxes(1, 2)), rtol=1e-5, atol=1e-6
    )
