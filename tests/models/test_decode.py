"""Decoding is the forward pass, one token at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import models
from configs.errors import UserError
from models.decoding import decode
from models.decoding.kv_cache import KVCache
from tests.models.common import build, close, run, tiny, tokens

ROPE = [
    dict(position__rope__scaling__kind=kind, position__rope__scaling__factor=4.0)
    for kind in ("linear", "ntk", "dynamic", "yarn", "llama3")
]
SCHEMES: list[dict[str, Any]] = [
    dict(position__kind="none"),
    dict(position__kind="learned", position__max_length=12),
    dict(position__kind="sinusoidal"),
    dict(),
    dict(position__rope__pairing="interleaved", position__rope__fraction=0.5),
    *ROPE,
]


def in_pieces(
    model: models.Transformer, ids: jax.Array, sizes: list[int], places: Any = None, segments: Any = None
) -> jax.Array:
    """Returns the logits [B, T, V] of the tokens read in pieces through a cache."""
    graphdef, params = nnx.split(model)

    @jax.jit
    def read(cache: KVCache, *args: Any) -> tuple[jax.Array, KVCache]:
        return nnx.merge(graphdef, params)(*args, cache=cache)

    cache, start, logits = model.cache(*ids.shape), 0, []
    for size in sizes:
        part = slice(start, start + size)
        args = [None if x is None else x[:, part] for x in (ids, places, segments)]
        out, cache = read(cache, *args)
        logits.append(out)
        start += size
    return jnp.concatenate(logits, axis=1)


@pytest.mark.fault(2)
@pytest.mark.parametrize("changes", SCHEMES, ids=str)
def test_token_by_token_equals_forward(changes: dict[str, Any]) -> None:
    """Fault 2, for every kind of position and scaling, with GQA and a window in one layer of two.

    Where the frequencies change with the length (dynamic), the forward pass of each prefix is what a step must equal.
    """
    config = tiny(position__rope__scaling__original_length=6, attention__window_pattern=(0, 4), **changes)
    model = build(config)
    ids = tokens(2, 11)
    got = in_pieces(model, ids, [1] * 11)
    if config.position.rope.scaling.kind == "dynamic":
        expected = jnp.stack([run(model, ids[:, : t + 1])[:, -1] for t in range(4, 11)], axis=1)
        close(got[:, 4:], expected, 2e-5)
        assert jnp.abs(got[:, 7] - run(model, ids)[:, 7]).max() > 1e-3  # so the prefixes do differ
    else:
        close(got, run(model, ids), 2e-5)


def greedy_by_forward(model: models.Transformer, ids: np.ndarray, new: int) -> np.ndarray:
    """Continues one row by a whole forward pass for each token, over a row padded to one length."""
    length = len(ids) + new
    graphdef, params = nnx.split(model)
    places = jnp.arange(length)[None]
    forward = jax.jit(lambda ids, segments: nnx.merge(graphdef, params)(ids, places * segments, segments))
    row = np.zeros((1, length), np.int32)
    row[0, : len(ids)] = ids
    for t in range(len(ids), length):
        row[0, t] = np.argmax(forward(row, (np.arange(length) < t)[None].astype(np.int32))[0, t - 1])
    return row[0, len(ids) :]


@pytest.mark.fault(7)
@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        ROPE[2],
        dict(position__kind="learned"),
        dict(attention__window=4, attention__qkv="fused", scan_layers="yes"),
    ],
    ids=str,
)
def test_generate_continues_greedily(changes: dict[str, Any]) -> None:
    """Rows of 7 and 4 tokens, left-padded: each continues as if alone, also past the scaling's original length."""
    config = tiny(position__rope__scaling__original_length=9, **changes)
    model = build(config)
    ids, mask = np.array(tokens(2, 7)), np.ones((2, 7), np.int32)
    mask[1, :3] = 0
    got = decode.generate(*nnx.split(model), ids, max_new=6, mask_BT=mask)
    assert got.shape == (2, 6)
    assert got.dtype == jnp.int32
    assert (got[0] == greedy_by_forward(model, ids[0], 6)).all()
    assert (got[1] == greedy_by_forward(model, ids[1, 3:], 6)).all()
    whole = decode.generate(*nnx.split(model), ids[:1], max_new=6)
    assert (whole == got[:1]).all()


def test_generate_through_a_growing_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode._capacities(256, 64) == [319]
    assert decode._capacities(16, 1000) == [256, 512, 1015]
    assert decode._capacities(300, 301) == [600]
    assert decode._capacities(16, 1000, (300, 64)) == [256, 1015]
    monkeypatch.setattr(decode, "_capacities", lambda length, new, windows: [4, 6, length + new - 1])
    model = build(tiny(attention__scale=0.3))
    ids = np.array(tokens(1, 3))
    assert (decode.generate(*nnx.split(model), ids, max_new=7)[0] == greedy_by_forward(model, ids[0], 7)).all()


def test_sampling() -> None:
    graphdef, params = nnx.split(build(tiny()))
    ids = jnp.tile(tokens(1, 3), (64, 1))

    def draw(heat: float, seed: int) -> jax.Array:
        key = jax.random.key(seed)
        return decode.generate(graphdef, params, ids, max_new=3, temperature=heat, key=key)

    assert (draw(1.0, 1) == draw(1.0, 1)).all()
    assert (draw(1.0, 1) != draw(1.0, 2)).any()
    assert (draw(1e-4, 1) == decode.generate(graphdef, params, ids, max_new=3)).all()
    logits = run(nnx.merge(graphdef, params), ids[:1])[0, -1]
    drawn = np.bincount(np.concatenate([draw(1.0, seed)[:, 0] for seed in range(16)]), minlength=32) / (16 * 64)
    assert np.abs(drawn - jax.nn.softmax(logits)).max() < 0.05


@pytest.mark.fault(14)
def test_a_full_cache_is_an_error() -> None:
    """Fault 14: dynamic_update_slice would move the write back over older slots."""
    model = build(tiny(num_layers=1))
    ids = tokens(1, 8)
    _, cache = model(ids[:, :6], cache=KVCache.create(tiny(num_layers=1), 1, 8))
    with pytest.raises(ValueError, match=r"full: 6 \+ 4 slots, of capacity 8"):
        model(ids[:, :4], cache=cache)
    logits, full = model(ids[:, :2], cache=cache)
    assert np.isfinite(logits).all()
    with pytest.raises(ValueError, match="full"):
        model(ids[:, :1], cache=full)
    with pytest.raises(ValueError, match="capacity 8"):
        jax.eval_shape(lambda cache: model(tokens(1, 9), cache=cache), full)
    graphdef, params = nnx.split(model)
    assert np.isnan(decode.step(graphdef, params, full, ids[:, 0])[0]).all()


def test_prefill_and_step() -> None:
    config = tiny()
    graphdef, params = nnx.split(build(config))
    ids = tokens(2, 6)
    logits, cache = decode.prefill(graphdef, params, KVCache.create(config, 2, 8), ids[:, :5])
    expected = run(nnx.merge(graphdef, params), ids)
    close(logits, expected[:, 4], 2e-5)
    logits, cache = decode.step(graphdef, params, cache, ids[:, 5])
    close(logits, expected[:, 5], 2e-5)
    assert int(cache.length) == 6
    assert cache.positions[:, 5].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("left", dict(mask_BT=[[1, 1, 0]])),
        ("left", dict(mask_BT=[[0, 0, 0]])),
        ("mask is", dict(mask_BT=[[1, 1]])),
        ("max_new = -1", dict(max_new=-1)),
        ("temperature", dict(temperature=1.0)),
        ("8 rows", dict(max_new=7)),
    ],
)
def test_generate_refuses_before_any_work(message: str, changes: dict[str, Any]) -> None:
    graphdef, params = nnx.split(build(tiny(position__kind="learned", position__max_length=8)))
    with pytest.raises(UserError, match=message):
        decode.generate(graphdef, params, tokens(1, 3), **{"max_new": 2, **changes})
    assert decode.generate(graphdef, params, tokens(1, 3), max_new=0).shape == (1, 0)


def test_generate_serves_a_second_seed_without_compiling() -> None:
    config = tiny()
    for seed in (0, 1):
        decode.generate(*models.initialise(config, seed), tokens(1, 4), max_new=3)
        size = decode._generate._cache_size()
    assert size == decode._generate._cache_size()
    before = size
    decode.generate(*models.initialise(config, 2), tokens(1, 4, seed=9), max_new=3)
    assert decode._generate._cache_size() == before


@pytest.mark.parametrize("talking", [False, True])
def test_top_k_keeps_the_same_keys_whatever_the_pieces(talking: bool) -> None:
    """Without positions keys of equal tokens are equal in the first layer, but their scores are rounded differently."""
    weights = {"attention__weights__kind": "top_k", "attention__weights__top_k": 2}
    config = tiny(position__kind="none", head_dim=6, width=14, attention__talking_heads=talking, **weights)
    model = build(config)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 2, (4, 13)), jnp.int32)
    close(in_pieces(model, ids, [1] * 13), run(model, ids), 2e-5)
