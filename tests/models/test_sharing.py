"""Layers that are unlike: shared keys and values (CLA, YOCO's second half), K = V, heads by layer; caches and layouts.

The formulas are held in the switches' table (tests/switches).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import counting, pattern
from models.decoding import decode
from models.initial import abstract
from tests.models.common import as_dict, build, close, run, tiny, tokens
from tests.models.test_flops import dots

CASES: dict[str, dict[str, Any]] = {
    "CLA": dict(num_layers=4, attention__kv_share=2),
    "YOCO": dict(
        num_layers=4, attention__kv_share=2, attention__kv_share_from=2, attention__window_pattern=(3, 3, 0, 0)
    ),
    "heads by layer": dict(
        num_layers=4,
        attention__pattern=({}, dict(num_heads=2, num_kv_heads=1, head_dim=6, theta=50.0)),
        attention__window_pattern=(0, 3),
    ),
    "K = V, three layers, windows": dict(
        num_layers=4, attention__kv_share=3, attention__tie_kv=True, attention__window=4, attention__qk_norm=True
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_left_padding_and_pieces_change_nothing(case: str) -> None:
    """A prompt behind padding, read in pieces into the cache, gives the logits that it gives alone."""
    config = tiny(**CASES[case])
    model, ids = build(config), tokens(2, 9)
    expected = run(model, ids)
    graphdef, params = nnx.split(model)
    padded = jnp.pad(ids, ((0, 0), (3, 0)))
    at = jnp.maximum(jnp.arange(12) - 3, 0)[None] + jnp.zeros((2, 1), jnp.int32)
    segments = jnp.broadcast_to((jnp.arange(12) >= 3).astype(jnp.int32), (2, 12))
    close(run(model, padded, at, segments)[:, 3:], expected, 2e-5)
    logits, cache = decode.prefill(graphdef, params, model.cache(2, 12), padded[:, :7], at[:, :7], segments[:, :7])
    close(logits, expected[:, 3], 2e-5)
    piece, cache = run(model, padded[:, 7:10], cache=cache)
    close(piece, expected[:, 4:7], 2e-5)
    for index in (7, 8):
        logits, cache = decode.step(graphdef, params, cache, ids[:, index])
        close(logits, expected[:, index], 2e-5)


def test_the_cache_holds_what_is_shared_once() -> None:
    """Bytes of the arrays, of the formula, and the numbers of the arithmetic: MHA of 4 layers keeps 2 x 4 x G K."""
    sizes = {}
    for name, changes in {
        "MHA": dict(num_layers=4),
        "K = V": dict(num_layers=4, attention__tie_kv=True),
        **CASES,
    }.items():
        config = tiny(**changes)
        cache = build(config).cache(2, 10)
        assert cache.nbytes == sum(counting.kv_cache_bytes(config, 4, batch=2, capacity=10).values()), name
        sizes[name] = cache.nbytes // (2 * 4 * 2 * 4)  # rows, bytes, G, K: leaves tokens by arrays
    assert sizes == {
        "MHA": 4 * 2 * 10,
        "K = V": 4 * 10,
        "CLA": 2 * 2 * 10,
        "YOCO": 2 * (3 + 3 + 10),
        "heads by layer": 2 * 2 * 10 + 2 * 2 * 3 * 6 // 8,
        "K = V, three layers, windows": 2 * 4,
    }


@pytest.mark.parametrize("case", CASES)
def test_layouts_compute_the_same(case: str) -> None:
    """Layers in one compiled loop, and layers computed again, give the same logits and gradients."""
    config, ids = tiny(**CASES[case]), tokens(1, 8)
    params = nnx.split(build(config))[1]

    def outcome(**changes: Any) -> Any:
        graphdef = abstract(tiny(**CASES[case], **changes))[0]
        function = jax.value_and_grad(lambda params: jnp.sum(nnx.merge(graphdef, params)(ids) ** 2))
        return jax.jit(function)(params)

    expected = outcome()
    for changes in ({"remat": "block"}, {"scan_layers": "yes", "remat": "projections"}):
        jax.tree.map(lambda a, b: close(a, b, 1e-4), outcome(**changes), expected)
    repeats = pattern.period(config) < config.num_layers
    jaxpr = str(
        jax.make_jaxpr(lambda params: nnx.merge(abstract(tiny(**CASES[case], scan_layers="yes"))[0], params)(ids))(
            params
        )
    )
    assert ("scan[" in jaxpr) == repeats == (case in ("CLA", "heads by layer"))


def test_layers_begin_as_they_do_without_sharing() -> None:
    """Arms that share a parameter's shape share its first value, layer by layer."""
    plain, shared = (as_dict(abstract_values(**changes)) for changes in (dict(num_layers=4), CASES["CLA"]))
    for layer, (stack, place) in enumerate((("0", 0), ("1", 0), ("0", 1), ("1", 1))):
        for name in ("attention.query.kernel", "mlp.up.kernel"):
            np.testing.assert_array_equal(shared[f"blocks.{stack}.{name}"][place], plain[f"blocks.{name}"][layer])
    for place, layer in enumerate((0, 2)):
        key = "attention.key.kernel"
        np.testing.assert_array_equal(shared[f"blocks.0.{key}"][place], plain[f"blocks.{key}"][layer])
    assert not any(name.startswith("blocks.1.attention.key") for name in shared)


def abstract_values(**changes: Any) -> Any:
    return nnx.state(build(tiny(**changes), noisy=False))


def test_a_prompt_is_read_to_the_last_layer_that_keeps() -> None:
    """Of the prompt's tokens all but the last stop there: the rest of the stack costs a token's matmuls (YOCO)."""

    def cost(**changes: Any) -> int:
        config = tiny(num_layers=4, attention__kernel="reference", **changes)
        graphdef, params = abstract(config)
        cache = jax.eval_shape(lambda: nnx.merge(graphdef, params).cache(1, 64))
        ids = jax.ShapeDtypeStruct((1, 64), jnp.int32)
        model = lambda p, c, t: nnx.merge(graphdef, p).hidden(t, cache=c, fresh=True, last_only=True)  # noqa: E731
        return dots(jax.make_jaxpr(model)(params, cache, ids).jaxpr)

    assert cost(attention__kv_share=2, attention__kv_share_from=2) < 0.72 * cost()
