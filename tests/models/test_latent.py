"""Multi-head latent attention: its definition in float64, and the properties every kind of attention has."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

from models import counting
from models.attention import Rows
from models.decoding import decode
from models.decoding.kv_cache import KVCache
from models.latent import LatentAttention
from models.positions import build as build_scheme
from models.positions import stretched
from tests.models.common import as_dict, build, close, run, tiny, tokens
from tests.models.test_decode import in_pieces
from tests.models.test_layout import loss_and_gradient

DIMS = dict(kv_rank=12, nope_dim=6, rope_dim=4, value_dim=5)
MLA: dict[str, Any] = {"attention__kind": "mla", **{f"attention__mla__{name}": dim for name, dim in DIMS.items()}}
YARN = {
    f"position__rope__scaling__{name}": value
    for name, value in dict(
        kind="yarn", factor=40.0, original_length=64, mscale=0.707, mscale_all_dim=0.707, beta_fast=4.0
    ).items()
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "query latent, sinks, cap, temperature": dict(
        attention__mla__query_rank=10,
        attention__sinks=True,
        attention__soft_cap=2.0,
        position__temperature__kind="ministral3",
        position__temperature__length=2,
        position__temperature__beta=1.0,
    ),
    "as DeepSeek-V2": dict(YARN, attention__mla__query_rank=10, position__rope__pairing="interleaved"),
    "yarn of different mscales": dict(YARN, position__rope__scaling__mscale=1.0),
    "no positions, window": dict(position__kind="none", attention__window=3, attention__out_bias=True),
}


def definition(config: ConfigDict, params: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Returns one layer's output [T, D] for x [T, D]: equations 9 to 19 of the paper, with the code's norms and scale.

    By loops over queries and heads; parameters by name, of that layer, in float64.
    """
    H, d = config.num_heads, config.attention.mla
    rope, scaling = config.position.rope, config.position.rope.scaling

    def norm(c: np.ndarray, name: str) -> np.ndarray:
        return c / np.sqrt((c**2).mean(-1, keepdims=True) + config.norm_eps) * params[f"{name}.scale"]

    def g(m: float) -> float:
        return 0.1 * m * math.log(scaling.factor) + 1

    frequencies, on_turns, on_scores = rope.theta ** (-np.arange(0, d.rope_dim, 2) / d.rope_dim), 1.0, 1.0
    if scaling.kind == "yarn":  # as DeepSeek's yarn_find_correction_range and yarn_linear_ramp_mask have it
        edge = [
            d.rope_dim * math.log(scaling.original_length / (n * 2 * math.pi)) / (2 * math.log(rope.theta))
            for n in (scaling.beta_fast, scaling.beta_slow)
        ]
        low, high = max(math.floor(edge[0]), 0), min(math.ceil(edge[1]), d.rope_dim - 1)
        keep = 1 - np.clip((np.arange(d.rope_dim // 2) - low) / max(high - low, 0.001), 0, 1)
        assert 0 < keep.sum() < keep.size
        frequencies = frequencies / scaling.factor * (1 - keep) + frequencies * keep
        on_turns, on_scores = g(scaling.mscale) / g(scaling.mscale_all_dim), g(scaling.mscale_all_dim) ** 2

    def turn(y: np.ndarray, t: int) -> np.ndarray:
        if config.position.kind == "none":
            return y
        pairs = y.reshape(-1, 2) if rope.pairing == "interleaved" else y.reshape(2, -1).T
        spun = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * t * frequencies) * on_turns
        both = np.stack([spun.real, spun.imag], axis=1)
        return both.reshape(-1) if rope.pairing == "interleaved" else both.T.reshape(-1)

    down = x @ params["kv_down.kernel"]
    c_kv, k_rope = norm(down[:, : d.kv_rank], "kv_norm"), down[:, d.kv_rank :]
    c_q = x if d.query_rank is None else norm(x @ params["query_down.kernel"], "query_norm")
    scale = on_scores / math.sqrt(d.nope_dim + d.rope_dim)
    warm = config.position.temperature
    warmth = [1 + warm.beta * math.log(1 + t // warm.length) * (warm.kind != "none") for t in range(len(x))]
    out = np.zeros((len(x), H * d.value_dim))
    for t in range(len(x)):
        for h in range(H):
            up_k = params["key_up.kernel"][:, h * d.nope_dim : (h + 1) * d.nope_dim]
            up_v = params["value_up.kernel"][:, h * d.value_dim : (h + 1) * d.value_dim]
            query = warmth[t] * (c_q[t] @ params["query.kernel"]).reshape(H, -1)[h]
            rotated = turn(query[d.nope_dim :], t)
            first = 0 if config.attention.window is None else max(0, t - config.attention.window + 1)
            seen = range(first, t + 1)
            scores = np.array([query[: d.nope_dim] @ (c_kv[s] @ up_k) + rotated @ turn(k_rope[s], s) for s in seen])
            scores = scale * scores
            if config.attention.soft_cap is not None:
                scores = config.attention.soft_cap * np.tanh(scores / config.attention.soft_cap)
            total = np.exp(scores).sum() + (np.exp(params["sinks"][h]) if config.attention.sinks else 0)
            values = np.array([c_kv[s] @ up_v for s in seen])
            out[t, h * d.value_dim : (h + 1) * d.value_dim] = np.exp(scores) @ values / total
    return out @ params["out.kernel"] + params.get("out.bias", 0.0)


def layer(config: ConfigDict) -> LatentAttention:
    result = build(config).layers()[1].attention
    assert isinstance(result, LatentAttention)
    return result


def call(config: ConfigDict, attention: LatentAttention, x: Any) -> Any:
    scheme = build_scheme(config, config.position.kind)
    return attention(x, Rows(), scheme, window=config.attention.window)[0]


@pytest.mark.parametrize("case", CASES)
def test_equals_the_definition(case: str) -> None:
    config = tiny(**MLA, **CASES[case])
    attention = layer(config)
    x = np.random.default_rng(0).standard_normal((2, 9, 16))
    result = jax.jit(lambda x: call(config, attention, x))(jnp.asarray(x, jnp.float32))
    params = {name: np.asarray(leaf, np.float64) for name, leaf in as_dict(nnx.state(attention)).items()}
    expected = np.stack([definition(config, params, row) for row in x])
    assert np.abs(expected).max() > 0.1
    close(result, expected)


def test_causal_by_gradient() -> None:
    """The gradient of output t to inputs after t is exactly zero, and to those before it not."""
    config = tiny(**MLA, attention__mla__query_rank=10)
    attention = layer(config)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((9, 16)), jnp.float32)
    jacobian = jax.jacrev(lambda x: call(config, attention, x[None])[0].sum(-1))
    reach = np.abs(jax.jit(jacobian)(x)).max(-1)
    assert (np.triu(reach, 1) == 0).all() and (reach[np.tril_indices(9)] > 0).all()


DECODED: dict[str, dict[str, Any]] = {
    "query latent, sinks, windows": dict(
        attention__mla__query_rank=10,
        attention__sinks=True,
        attention__window_pattern=(0, 4),
        position__pattern=("rope", "none"),
    ),
    "yarn, cap, temperature": dict(YARN, attention__soft_cap=3.0, position__temperature__kind="log_n"),
}


@pytest.mark.parametrize("case", DECODED)
def test_decoding_equals_forward(case: str) -> None:
    """The absorbed form is the expanded one: token by token, and in pieces, whose queries are several."""
    model = build(tiny(**MLA, **DECODED[case]))
    ids = tokens(2, 11)
    expected = run(model, ids)
    close(in_pieces(model, ids, [1] * 11), expected, 2e-5)
    close(in_pieces(model, ids, [5, 1, 5]), expected, 2e-5)


@pytest.mark.fault(2)
def test_decoding_equals_forward_where_frequencies_change_with_the_length() -> None:
    config = tiny(
        **MLA,
        position__rope__scaling__kind="dynamic",
        position__rope__scaling__factor=4.0,
        position__rope__scaling__original_length=6,
    )
    model = build(config)
    ids = tokens(1, 10)
    got = in_pieces(model, ids, [1] * 10)
    for length in (5, 10):
        close(got[:, length - 1], run(model, ids[:, :length])[:, -1], 2e-5)
    assert jnp.abs(got[:, 7] - run(model, ids)[:, 7]).max() > 1e-4  # so the prefixes do differ


@pytest.mark.fault(7, 17)
def test_left_padding_and_packing_change_nothing() -> None:
    """Faults 7 and 17: a row padded on the left, forward and after decoding; two documents in one row."""
    model = build(tiny(**MLA, attention__sinks=True))
    ids = tokens(2, 8)
    alone, whole = run(model, ids[:, 3:]), run(model, ids)
    segments = jnp.ones((2, 8), jnp.int32).at[1, :3].set(0)
    places = jnp.stack([jnp.arange(8), jnp.maximum(jnp.arange(8) - 3, 0)])
    for got in (run(model, ids, places, segments), in_pieces(model, ids, [5, 1, 1, 1], places, segments)):
        close(got[0], whole[0], 2e-5)
        close(got[1, 3:], alone[1], 2e-5)
    packed = jnp.concatenate([ids[:, :3], ids[:, 3:]], axis=1)
    documents = jnp.asarray([[1] * 3 + [2] * 5])
    restarted = jnp.asarray([[*range(3), *range(5)]])
    close(run(model, packed, restarted, documents)[:, 3:], alone, 2e-5)


def test_the_cache_keeps_the_latent_and_the_shared_key() -> None:
    config = tiny(**MLA, num_layers=3)
    model = build(config)
    ids = tokens(2, 7)
    cache = model(ids, cache=model.cache(2, 9))[1]
    assert {name: x.shape for name, x in cache.layer(0).items()} == {"c_kv": (2, 9, 1, 12), "k_rope": (2, 9, 1, 4)}
    assert cache.nbytes == 2 * 9 * counting.kv_bytes_per_token(config, 4) == 2 * 9 * 3 * (12 + 4) * 4
    attention = model.layers()[0].attention
    expected = attention.latents(_first_input(model, ids), Rows(), model.schemes["rope"])
    for name, array in expected.items():
        close(cache.layer(0)[name][:, :7], array)
    eighth = tiny(**MLA, attention__kv_storage="int8")
    assert build(eighth).cache(2, 9).nbytes == 2 * 9 * 2 * (12 + 4 + 2 * 4)  # a float32 scale for each of the two


def _first_input(model: Any, ids: jax.Array) -> jax.Array:
    return model.layers()[0].attention_norm(model.embedding[...][ids])


@pytest.mark.slow
def test_scanned_and_rematerialised_equal_unrolled() -> None:
    changes = dict(MLA, num_layers=3, attention__mla__query_rank=10, attention__sinks=True)
    plain, gradient = loss_and_gradient(build(tiny(scan_layers="no", **changes)))
    other, other_gradient = loss_and_gradient(build(tiny(scan_layers="yes", remat="block", **changes)))
    close(plain, other)
    assert "blocks.attention.sinks" in gradient
    for name, leaf in gradient.items():
        assert jnp.abs(leaf).max() > 0, name
        close(leaf, other_gradient[name], 1e-4)


def test_bfloat16_decodes_near_float32() -> None:
    ids = tokens(2, 8)
    expected = run(build(tiny(**MLA)), ids)
    got = in_pieces(build(tiny(**MLA, dtype="bfloat16")), ids, [4, 4])
    assert jnp.abs(got - expected).max() < 0.1 * jnp.abs(expected).max()


def test_generation_is_the_forwards() -> None:
    """Prefill expands the prompt's latents and computes the last layer for its last token; steps absorb."""
    model = build(tiny(**MLA, attention__sinks=True))
    ids = np.asarray(tokens(1, 5))
    new = np.asarray(decode.generate(*nnx.split(model), ids, max_new=4))[0]
    logits = run(model, np.concatenate([ids[0], new])[None])[0, 4:-1]
    assert (jnp.argmax(logits, axis=-1) == new).all()


def test_a_scaling_as_arguments_keeps_its_factor_on_scores() -> None:
    """Evaluation gives a scaling's numbers to a program that other scalings share."""
    config = tiny(**MLA, **YARN)
    model, ids = build(config), tokens(1, 9)
    shared, frequencies = stretched.share(config, 9)
    assert shared.position.rope.scaling.kind == "none" and frequencies["rope"][2] > 1.5
    other = build(shared)

    def logits(frequencies: Any) -> jax.Array:
        merged = nnx.merge(*nnx.split(other))
        stretched.apply(merged, frequencies)
        return merged(ids)

    close(jax.jit(logits)(frequencies), run(model, ids), 2e-5)


def test_figures_of_deepseek_v2() -> None:
    """Table 1 of the paper: (d_c + d_h^R) l = 9/2 d_h l numbers a token; DeepSeek-V2's own sizes."""
    config = tiny(
        width=5120, num_layers=60, num_heads=128, head_dim=128, attention__kind="mla", attention__mla__query_rank=1536
    )
    mla = config.attention.mla
    assert (mla.kv_rank, mla.nope_dim, mla.rope_dim, mla.value_dim) == (512, 128, 64, 128)
    assert counting.kv_bytes_per_token(config, 2) == 2 * 60 * 9 * 128 // 2
    assert KVCache.create(tiny(**MLA), 1, 4).nbytes == 4 * 2 * 16 * 4
    layer = 5120 * 1536 + 1536 * 128 * 192 + 5120 * 576 + 512 * 128 * 256 + 128 * 128 * 5120
    assert counting.parameters(config)["attention"] == 60 * layer
    scores = 6 * 60 * 128 * (192 + 128) * 4097 // 2
    flops = counting.flops_per_token(config, 4096)
    assert flops["value"] == 6 * flops["N"] + scores and "6 H (K + Kv) keys" in flops["formula"]
