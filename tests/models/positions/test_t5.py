import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import positions
from models.positions.t5 import bidirectional_buckets_of, buckets_of
from tests.models.common import tiny

TABLE = {0: 0, 1: 1, 15: 15, 16: 16, 20: 17, 21: 18, 32: 21, 64: 26, 112: 30, 113: 31, 128: 31, 100_000: 31}


def test_buckets_of_distances() -> None:
    np.testing.assert_array_equal(buckets_of(np.array(list(TABLE)), 32, 128), list(TABLE.values()))
    assert buckets_of(np.arange(5), 32, 128).dtype == np.int32


def test_bidirectional_buckets() -> None:
    relative = {-8: 8, 0: 0, 1: 17, 8: 24, -1: 1, 1000: 31, -1000: 15}
    np.testing.assert_array_equal(bidirectional_buckets_of(np.array(list(relative)), 32, 128), list(relative.values()))


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (2, 3), (64, 1000)])
def test_buckets_follow_the_formula(buckets: int, most: int) -> None:
    exact = buckets // 2
    for n in range(most + 5):
        result = int(buckets_of(np.array([n]), buckets, most)[0])
        if n < exact:
            assert result == n
        else:
            wide = math.log(n / exact) / math.log(most / exact) * (buckets - exact)
            # float32 may fall on the other side of a whole number.
            assert result in {min(exact + math.floor(wide + e), buckets - 1) for e in (-1e-5, 1e-5)}


def scheme() -> positions.Scheme:
    return positions.build(tiny(position__kind="t5"), rngs=nnx.Rngs(0))


@pytest.mark.fault(13)
def test_bias_looks_the_bucket_up_at_any_offset() -> None:
    t5 = scheme()
    table = np.asarray(t5.bias_table[...])  # type: ignore[attr-defined]
    assert table.shape == (32, 4) and 0.5 < table.std() * math.sqrt(16) < 1.5
    for offset in (0, 5, 100_000):
        queries = jnp.asarray([[200, 113]]) + offset
        keys = jnp.asarray([[0, 87, 113, 180, 200, 201]]) + offset
        result = np.asarray(t5.bias()(queries, keys))[0]  # type: ignore[misc]
        for row, q in enumerate((200, 113)):
            for column, k in enumerate((0, 87, 113, 180, 200, 201)):
                bucket = int(buckets_of(np.array([max(q - k, 0)]), 32, 128)[0])
                np.testing.assert_array_equal(result[:, row, column], table[bucket])


def test_gradient_counts_the_pairs_of_each_bucket() -> None:
    t5 = scheme()
    graph, state = nnx.split(t5)
    rows = jnp.arange(40)[None]

    def total(state: nnx.State) -> jax.Array:
        return jnp.sum(nnx.merge(graph, state).bias()(rows, rows))

    (gradient,) = jax.tree.leaves(jax.grad(total)(state))
    distances = np.maximum(np.arange(40)[:, None] - np.arange(40), 0)
    counts = np.bincount(buckets_of(distances.ravel(), 32, 128), minlength=32)
    np.testing.assert_allclose(gradient, np.repeat(counts[:, None], 4, axis=1), rtol=1e-6)
