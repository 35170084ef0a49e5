"""Properties of `attend` and the faults others have shipped (each named where it is checked)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import kernels
from tests.models.common import normal

KERNELS = ["reference", "blocked", "xla"]


def attend(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    """`attend`, compiled in haste: op by op it would be slower still."""
    function = functools.partial(kernels.attend, **options)
    traced = isinstance(q, jax.core.Tracer) or isinstance(k, jax.core.Tracer)
    return function(q, k, v) if traced else jax.jit(function)(q, k, v)


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return normal(shape, seed)


@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_by_gradient(kernel: str) -> None:
    """The gradient of output t to keys and values after t is exactly zero."""
    q, k, v = (draw(1, 70, 2, 4, seed=seed) for seed in range(3))

    def at(t: int, k: Any, v: Any) -> Any:
        return jnp.sum(attend(q, k, v, kernel=kernel)[0, t])

    gradient = jax.jit(jax.grad(at, (1, 2)), static_argnums=0)
    for t in (1, 63, 64):
        for d in gradient(t, k, v):
            assert not np.asarray(d)[0, t + 1 :].any() and np.asarray(d)[0, : t + 1].any()


@pytest.mark.fault(17)
@pytest.mark.parametrize("kernel", KERNELS)
def test_documents_do_not_touch(kernel: str) -> None:
    """Fault 17: another first document changes the second's output by exactly nothing."""
    segments = jnp.asarray([[1] * 30 + [2] * 40])
    q, k, v = (draw(1, 70, 2, 4, seed=seed) for seed in range(3))
    given = dict(q_segments=segments, kv_segments=segments, kernel=kernel)
    other = (x.at[:, :30].set(draw(1, 30, 2, 4, seed=9)) for x in (q, k, v))
    np.testing.assert_array_equal(attend(q, k, v, **given)[:, 30:], attend(*other, **given)[:, 30:])


@pytest.mark.fault(8)
@pytest.mark.parametrize("kernel", KERNELS)
def test_fully_masked_rows_are_zero_with_finite_gradients(kernel: str) -> None:
    """Fault 8: jax.nn gives the values' mean."""
    segments = jnp.asarray([[0, 0, 1, 1]])
    q, k, v = (draw(1, 4, 2, 4, seed=seed) for seed in range(3))

    def total(q: Any, k: Any, v: Any) -> Any:
        out = attend(q, k, v, q_segments=segments, kv_segments=segments, kernel=kernel)
        return jnp.sum(out**2), out

    gradients, out = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v)
    assert not np.asarray(out)[0, :2].any() and np.asarray(out)[0, 2:].all()
    assert all(np.isfinite(d).all() for d in gradients)
    assert all(not np.asarray(d)[0, :2].any() for d in gradients)


@pytest.mark.fault(9)
@pytest.mark.parametrize("kernel", KERNELS)
def test_query_heads_read_their_group_in_order(kernel: str) -> None:
    """Fault 9: 4 query heads, 2 kv heads with values 10 and 20 read [10 10 20 20]."""
    v = jnp.broadcast_to(jnp.asarray([10.0, 20.0])[None, None, :, None], (1, 3, 2, 4))
    zeros = jnp.zeros((1, 3, 4, 4))
    out = attend(zeros, zeros[:, :, :2], v, kernel=kernel)
    np.testing.assert_allclose(out[0, 2, :, 0], [10, 10, 20, 20], rtol=1e-6)


@pytest.mark.fault(15)
@pytest.mark.parametrize("kernel", KERNELS)
def test_last_query_stands_at_the_last_key(kernel: str) -> None:
    """Fault 15: q=2, k=5, equal scores, V=0..4 gives [1.5, 2.0]; jax.nn gives [0, .5]."""
    v = jnp.arange(5.0).reshape(1, 5, 1, 1)
    out = attend(jnp.zeros((1, 2, 1, 1)), jnp.zeros((1, 5, 1, 1)), v, kernel=kernel)
    np.testing.assert_allclose(out.ravel(), [1.5, 2.0], rtol=1e-6)


@pytest.mark.fault(16)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [1, 2])
def test_window_keeps_that_many_keys_itself_included(kernel: str, window: int) -> None:
    """Fault 16: jax's local_window_size = 2 keeps 3."""
    v = jnp.eye(6).reshape(1, 6, 1, 6)
    zeros = jnp.zeros((1, 6, 1, 6))
    weights = np.asarray(attend(zeros, zeros, v, window=window, kernel=kernel))[0, :, 0]
    for t in range(6):
        np.testing.assert_array_equal(np.flatnonzero(weights[t]), np.arange(max(0, t - window + 1), t + 1))


@pytest.mark.fault(11)
@pytest.mark.parametrize("kernel", KERNELS)
def test_scale_is_of_the_head_dim(kernel: str) -> None:
    """Fault 11: 1/sqrt(head_dim), and one's own where given."""
    q, k, v = (draw(1, 3, 1, 9, seed=seed) for seed in range(3))
    np.testing.assert_allclose(attend(q, k, v, kernel=kernel), attend(q / 3, k, v, scale=1.0, kernel=kernel), rtol=1e-5)


class Slopes(nnx.Module):
    def __init__(self) -> None:
        self.slope = nnx.Param(jnp.asarray([0.5, -1.0]))

    def bias(self) -> Any:
        return lambda q, kv: -self.slope[...][None, :, None, None] * (q[:, None, :, None] - kv[:, None, None, :])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "remat"])
def test_bias_of_a_module_inside_a_scan_over_layers(wrap: Any) -> None:
    """The bias's parameters get their gradients through jit, scan, remat and the split state of a module."""
    graph, params = nnx.split(Slopes())
    q, k, v = (draw(2, 5, 2, 4, seed=seed) for seed in range(3))

    def loss(params: Any, kernel: str) -> Any:
        @wrap
        def layer(x: Any, lift: Any) -> Any:
            return attend(lift * x, k, v, bias=nnx.merge(graph, params).bias(), kernel=kernel), None

        return jnp.sum(jax.lax.scan(layer, q, jnp.asarray([0.5, 0.7]))[0] ** 2)

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    result, expected = (jax.tree.leaves(gradient(params, kernel))[0] for kernel in ("blocked", "reference"))
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_a_bias_function_is_read_anew_at_each_call() -> None:
    """Tracing is cached by function; the arrays its closure holds may change between calls."""
    held = {"slope": jnp.asarray([1.0, 2.0])}

    def bias(q: Any, kv: Any) -> Any:
        return -held["slope"][None, :, None, None] * (q[:, None, :, None] - kv[:, None, None, :])

    q, k, v = (draw(1, 5, 2, 4, seed=seed) for seed in range(3))
    first = attend(q, k, v, bias=bias, kernel="blocked")
    held["slope"] = jnp.asarray([0.0, 0.0])
    np.testing.assert_allclose(attend(q, k, v, bias=bias, kernel="blocked"), attend(q, k, v), rtol=1e-5)
    assert np.abs(np.asarray(first) - np.asarray(attend(q, k, v))).max() > 0.01


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": (2, 4, 3, 8)}, "3 key/value heads do not divide 4"),
        ({"k": (2, 4, 2, 7)}, "attention needs q"),
        ({"sinks": jnp.zeros(2)}, r"sinks must be \[4\], one for each query head, not \(2,\)"),
        ({"q_segments": jnp.ones((1, 4), int)}, "for queries and keys, or for neither"),
        ({"window": 0}, "1 or more"),
        ({"window": 3, "causal": False}, "needs a causal mask"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Any], words: str) -> None:
    shape = change.pop("k", (2, 4, 2, 8))
    with pytest.raises(ValueError, match=words):
        attend(jnp.zeros((2, 4, 4, 8)), jnp.zeros(shape), jnp.zeros(shape), **change)
