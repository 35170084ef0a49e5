import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import positions
from models.positions.kerple import Kerple, within
from tests.models.common import normal, tiny

KINDS = ("kerple_log", "kerple_power")


def scheme(kind: str, layers: int = 3) -> Kerple:
    result = positions.build(tiny(position__kind=kind, num_layers=layers), rngs=nnx.Rngs(0))
    assert isinstance(result, Kerple)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_formula(kind: str) -> None:
    kerple = scheme(kind)
    for layer in range(3):
        one = kerple.layer(layer)
        r1, r2 = (np.maximum(np.asarray(p[...], np.float64)[layer], 0.01) for p in (kerple.bias_r1, kerple.bias_r2))
        result = np.asarray(one.bias()(jnp.asarray([[5, 70]]), jnp.asarray([[0, 5, 69]])))
        for h in range(4):
            for t, i in enumerate((5, 70)):
                for s, j in enumerate((0, 5, 69)):
                    d = abs(i - j)
                    expected = -r1[h] * np.log(1 + r2[h] * d) if kind == "kerple_log" else -r1[h] * d ** r2[h]
                    assert result[0, h, t, s] == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("kind", "most"), [("kerple_log", (2, 1)), ("kerple_power", (1, 2))])
def test_starts_even_below_the_authors_bounds(kind: str, most: tuple[float, float]) -> None:
    kerple = scheme(kind, layers=200)
    for values, bound in zip((kerple.bias_r1, kerple.bias_r2), most, strict=True):
        values = np.asarray(values[...])
        assert values.shape == (200, 4) and values.min() >= 0 and 0.95 * bound < values.max() < bound
        assert abs(values.mean() / bound - 0.5) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_also_at_distance_zero_and_equal_differences(kind: str) -> None:
    graph, state = nnx.split(scheme(kind))
    rows = jnp.arange(6)[None]
    weights = normal((1, 4, 6, 6), 1)

    def total(state: nnx.State) -> jax.Array:
        return jnp.sum(weights * nnx.merge(graph, state).layer(1).bias()(rows, rows))

    gradient = jax.grad(total)(state)
    step = jax.tree.map(lambda x: 1e-2 * normal(x.shape, 2), state)
    ahead, behind = (total(jax.tree.map(lambda p, d, s=s: p + s * d, state, step)) for s in (1, -1))
    slope = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(step), strict=True))
    assert float(ahead - behind) / 2 == pytest.approx(float(slope), rel=2e-3)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all() and (np.asarray(leaf)[[0, 2]] == 0).all() and (np.asarray(leaf)[1] != 0).all()


def test_parameters_act_within_their_bounds_and_can_come_back() -> None:
    x = jnp.asarray([-1.0, 0.5, 3.0])
    np.testing.assert_allclose(within(x, 0.01, 2.0), [0.01, 0.5, 2.0])
    # Descent along these gradients leads out, then back in.
    np.testing.assert_allclose(
        jax.vjp(lambda x: within(x, 0.01, 2.0), x)[1](jnp.asarray([1.0, 1.0, -1.0]))[0], [0, 1, 0]
    )
    np.testing.assert_allclose(
        jax.vjp(lambda x: within(x, 0.01, 2.0), x)[1](jnp.asarray([-1.0, 1.0, 1.0]))[0], [-1, 1, 1]
    )
