import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.errors import ConfigError
from models import kernels, positions
from models.positions.cope import Cope
from tests.models.common import build, normal, run, tiny, tokens


def scheme(rows: int = 4, layer: int = 1) -> Cope:
    graph, state = nnx.split(positions.build(tiny(position__kind="cope", position__cope__rows=rows), rngs=nnx.Rngs(0)))
    state = jax.tree.map(lambda x: normal(x.shape, 2), state)
    return nnx.merge(graph, state).layer(layer)


def by_loops(q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, window: int | None = None) -> np.ndarray:
    """Returns one row's attention [T, H, K], in float64, as the paper's equations read."""
    T, H, K = q.shape
    out = np.zeros((T, H, K))
    for h in range(H):
        group = h // (H // k.shape[1])
        for i in range(T):
            keys = [j for j in range(i + 1) if window is None or i - j < window]
            scores = {j: q[i, h] @ k[j, group] / np.sqrt(K) for j in keys}
            gates = {j: 1 / (1 + np.exp(-scores[j])) for j in keys}
            logits = []
            for j in keys:
                p = min(sum(gates[m] for m in keys if m >= j), len(table) - 1)
                low, high = int(np.floor(p)), int(np.ceil(p))
                e = (1 - (p - low)) * (q[i, h] @ table[low]) + (p - low) * (q[i, h] @ table[high])
                logits.append(scores[j] + e)
            weights = np.exp(np.array(logits) - max(logits))
            out[i, h] = weights / weights.sum() @ v[keys, group]
    return out


def inputs(rows: int = 1, length: int = 7) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (rows, length, 4, 4), (rows, length, 2, 4), (rows, length, 2, 4)
    q, k, v = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return q, k, v


@pytest.mark.parametrize("rows", [4, 16])  # clipped and not
@pytest.mark.parametrize("window", [None, 3])
def test_equals_the_papers_equations(rows: int, window: int | None) -> None:
    cope = scheme(rows)
    q, k, v = inputs()
    result = kernels.attend(q, k, v, scores=cope.scores(), window=window)
    expected = by_loops(
        *(np.asarray(x[0], np.float64) for x in (q, k, v)), np.asarray(cope.table[...], np.float64), window
    )
    np.testing.assert_allclose(result[0], expected, atol=2e-5)


def test_counts_in_the_order_of_positions_whatever_the_slots() -> None:
    cope = scheme()
    q, k, v = inputs(rows=2)
    expected = kernels.attend(q, k, v, scores=cope.scores())[:, -2:]
    order = np.array([4, 6, 0, 5, 2, 1, 3])
    result = kernels.attend(
        q[:, -2:],
        k[:, order],
        v[:, order],
        scores=cope.scores(),
        q_positions=jnp.asarray([[5, 6]]),
        kv_positions=jnp.asarray(order)[None],
        aligned=False,
    )
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_other_documents_are_not_counted() -> None:
    cope = scheme()
    q, k, v = inputs(length=9)
    segments, at = jnp.asarray([[1] * 4 + [2] * 5]), jnp.asarray([[*range(4), *range(5)]])
    packed = kernels.attend(
        q, k, v, scores=cope.scores(), q_segments=segments, kv_segments=segments, q_positions=at, kv_positions=at
    )
    for part in (slice(0, 4), slice(4, 9)):
        alone = kernels.attend(q[:, part], k[:, part], v[:, part], scores=cope.scores())
        np.testing.assert_allclose(packed[:, part], alone, atol=2e-6)


def test_starts_as_no_positions_and_learns() -> None:
    config = tiny(position__kind="cope")
    ids = tokens(2, 9)
    fresh = build(config, noisy=False)
    np.testing.assert_allclose(run(fresh, ids), run(build(tiny(position__kind="none"), noisy=False), ids), atol=1e-5)
    graph, params = nnx.split(fresh)
    gradient = jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(ids) ** 2))(params)
    table = np.asarray(gradient["schemes"]["cope"]["table"][...])
    assert table.shape == (2, 64, 4) and np.isfinite(table).all() and table[0].any() and table[1].any()


def test_only_reference_serves_it() -> None:
    requested = dict(platform="cpu", dtype=jnp.float32, head_dim=8, q_len=8, kv_len=8)
    assert kernels.choose("auto", kernels.Needs(scores=True, **requested)) == "reference"
    assert kernels.choose("reference", kernels.Needs(scores=True, **requested)) == "reference"
    for kernel in ("blocked", "xla", "cudnn"):
        with pytest.raises(ConfigError, match=f"kernel = '{kernel}'.*CoPE"):
            kernels.choose(kernel, kernels.Needs(scores=True, **requested))
        with pytest.raises(ConfigError, match=f"model.attention.kernel = '{kernel}': CoPE"):
            tiny(position__kind="cope", attention__kernel=kernel)
    config = tiny(position__pattern=("cope", "rope"))
    assert kernels.kernel_for(config, length=8, platform="cpu", packed=False) == "blocked+reference"
