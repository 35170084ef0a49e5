"""The forward pass against an independent one, and properties that hold for every config."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import models
from configs.errors import ConfigError
from models import layers
from models.layers import dropout
from tests.models.common import GPT2, build, close, numpy_logits, run, tiny, tokens


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(head_dim=6, num_heads=2, num_kv_heads=1, tie_embeddings=False),  # H K = 12, width 16
        dict(head_dim=8, num_heads=6, num_kv_heads=3, attention__qkv="fused"),
        {name.replace(".", "__"): value for name, value in GPT2.items()},
        dict(attention__sinks=True, num_kv_heads=1),
        dict(residual="parallel", embedding_norm=True, norm="layernorm", norm_bias=True),
    ],
    ids=["llama", "head_dim_apart", "wide_heads_fused", "gpt2", "sinks", "parallel"],
)
def test_equals_an_independent_forward(changes: dict[str, Any]) -> None:
    config = tiny(**changes)
    model = build(config)
    ids = tokens(1, 11)
    close(run(model, ids)[0], numpy_logits(config, model, np.asarray(ids[0])), 3e-5)


@pytest.mark.fault(8)
def test_padding_alone_has_finite_gradients() -> None:
    model = build(tiny())
    graphdef, params = nnx.split(model)
    segments = jnp.zeros((1, 5), jnp.int32)
    loss = lambda p: nnx.merge(graphdef, p)(tokens(1, 5), segments, segments).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


def test_window_bounds_what_a_token_sees() -> None:
    """With window W in both of 2 layers, a token sees 2 (W - 1) places back and no further."""
    model = build(tiny(attention__window=3))
    ids = tokens(1, 9)
    base = run(model, ids)
    changed = [bool((run(model, ids.at[0, s].set((ids[0, s] + 1) % 32))[0, 8] != base[0, 8]).any()) for s in range(9)]
    assert changed == [False] * 4 + [True] * 5


def test_patterns_act_by_layer() -> None:
    """A window in one layer of two differs from both; NoPE in every second layer is neither RoPE nor NoPE."""
    ids = tokens(2, 9)
    by_window = [run(build(tiny(attention__window_pattern=p)), ids) for p in [(2,), (0,), (2, 0), (0, 2)]]
    by_position = [run(build(tiny(position__pattern=p)), ids) for p in [("rope",), ("none",), ("rope", "none")]]
    for family in (by_window, by_position):
        for i, one in enumerate(family):
            assert all(jnp.abs(one - other).max() > 1e-3 for other in family[i + 1 :])
    close(by_window[1], run(build(tiny()), ids))
    close(by_position[0], run(build(tiny()), ids))
    close(by_window[0], run(build(tiny(attention__window=2)), ids))


@pytest.mark.parametrize(
    "change",
    [
        dict(attention__scale=1.0),
        dict(attention__sinks=True),
        dict(attention__kind="mla"),
        dict(attention__soft_cap=0.5),
        dict(attention__qk_norm=True),
        dict(logit_soft_cap=1.0),
        dict(norm="layernorm"),
        dict(norm_eps=0.1),
        dict(residual="parallel"),
        dict(embedding_norm=True),
        dict(mlp="gelu"),
        dict(mlp="relu2"),
        dict(position__rope__theta=100.0),
        dict(position__rope__fraction=0.5),
        dict(position__rope__pairing="interleaved"),
        dict(position__rope__scaling__kind="linear", position__rope__scaling__factor=2.0),
        dict(position__kind="sinusoidal"),
        dict(tie_embeddings=False),
        dict(init="normal"),
        dict(init_std=0.1),
    ],
    ids=str,
)
def test_every_switch_acts(change: dict[str, Any]) -> None:
    ids = tokens(2, 9)
    plain, changed = (run(build(tiny(**c), noisy=False), ids) for c in ({}, change))
    assert jnp.abs(plain - changed).max() > 1e-3


def test_logit_soft_cap_bounds() -> None:
    assert jnp.abs(run(build(tiny(logit_soft_cap=0.5)), tokens(2, 9))).max() <= 0.5


@pytest.mark.parametrize("init", ["truncated_normal", "normal", "uniform"])
def test_a_parameters_first_values_are_the_beginning_of_a_larger_ones(init: str) -> None:
    """Small shapes take a shorter draw, to the bit the beginning of a whole piece, under jit too."""
    key, layer = jax.random.key(5), (3,)
    whole = np.asarray(layers._draw(key, "x", (layers.PIECE,), layer, init))[0]
    for size in (1, 7, *layers.SMALLER, layers.SMALLER[0] + 1, layers.SMALLER[1] + 1):
        np.testing.assert_array_equal(layers._draw(key, "x", (size,), layer, init)[0], whole[:size])
    inside = jax.jit(lambda key: layers._draw(key, "x", (50,), layer, init))(key)
    np.testing.assert_array_equal(inside[0], whole[:50])
    assert (np.asarray(layers._draw(key, "x", (7,), (4,), init))[0] != whole[:7]).all()


def test_vocabulary_must_be_known() -> None:
    config = tiny()
    config.vocab_size = None
    with pytest.raises(ConfigError, match="vocab_size"):
        models.initialise(config, 0)


def test_dropout_keeps_the_mean_and_needs_a_key() -> None:
    x = jnp.ones((1000, 100))
    dropped = dropout(x, 0.25, jax.random.key(0))
    assert abs(float(dropped.mean()) - 1) < 0.02
    assert abs(float((dropped == 0).mean()) - 0.25) < 0.01
    assert dropout(x, 0.25, None) is x
    model = build(tiny(dropout=0.5))
    ids = tokens(2, 9)
    first, again, other = (run(model, ids, dropout_key=jax.random.key(k)) for k in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    close(run(model, ids), run(build(tiny()), ids))
