import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import positions
from models.positions.fire import Fire
from tests.models.common import normal, tiny


def scheme(**changes: float) -> Fire:
    config = tiny(position__kind="fire", **{f"position__fire__{name}": value for name, value in changes.items()})
    graph, state = nnx.split(positions.build(config, rngs=nnx.Rngs(0)))
    keys = iter(jax.random.split(jax.random.key(4), 6))
    moved = jax.tree.map(lambda x: x * (1 + 0.1 * jax.random.normal(next(keys), x.shape)) + 0.01, state)
    return nnx.merge(graph, moved)


@pytest.mark.parametrize("threshold", [4.0, 512.0])
def test_formula(threshold: float) -> None:
    fire = scheme(threshold=threshold)
    queries, keys = np.array([0, 3, 9, 900]), np.array([0, 1, 9, 880])
    result = np.asarray(fire.layer(1).bias()(jnp.asarray([queries]), jnp.asarray([keys])))

    def of(parameter: nnx.Param) -> np.ndarray:
        return np.asarray(parameter[...], np.float64)[1]

    c, limit = abs(of(fire.distance_scale)[0]), abs(threshold * of(fire.threshold_scale)[0])
    for t, i in enumerate(queries):
        for s, j in enumerate(keys):
            x = np.log(c * abs(i - j) + 1) / np.log(c * max(i, limit) + 1)
            hidden = np.maximum(x * of(fire.hidden) + of(fire.hidden_bias), 0)
            expected = hidden @ of(fire.out) + of(fire.out_bias)
            np.testing.assert_allclose(result[0, :, t, s], expected, rtol=2e-5, atol=1e-5)


def test_starts_as_configured_with_bends_within_reach() -> None:
    fire = positions.build(tiny(position__kind="fire", position__fire__hidden=64), rngs=nnx.Rngs(0))
    assert isinstance(fire, Fire)
    np.testing.assert_allclose(fire.distance_scale[...], np.full((2, 1), 0.1, np.float32))
    assert fire.threshold == 512 and (np.asarray(fire.threshold_scale[...]) == 1).all()
    at = -np.asarray(fire.hidden_bias[...]) / np.asarray(fire.hidden[...])
    assert ((at > 0) & (at < 1)).sum() > 10, "ReLUs that bend between distance 0 and the furthest"


def test_interpolates_beyond_the_threshold_only() -> None:
    bias = scheme(threshold=16.0).layer(0).bias()
    near = [np.asarray(bias(jnp.asarray([[i]]), jnp.asarray([[i - 4]]))) for i in (4, 8, 12)]
    np.testing.assert_array_equal(near[0], near[1])
    np.testing.assert_array_equal(near[1], near[2])
    assert np.abs(near[0] - np.asarray(bias(jnp.asarray([[64]]), jnp.asarray([[60]])))).max() > 1e-3


def test_gradients_are_finite_and_reach_every_parameter_of_the_layer() -> None:
    graph, state = nnx.split(scheme(threshold=3.0))
    rows = jnp.arange(8)[None]
    weights = normal((1, 4, 8, 8), 1)
    gradient = jax.grad(lambda s: jnp.sum(weights * nnx.merge(graph, s).layer(0).bias()(rows, rows)))(state)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all() and np.asarray(leaf)[0].any() and not np.asarray(leaf)[1].any()
