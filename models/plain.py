"""The default model in plain JAX, written to be read: `configs/base.py` with every switch at its default.

Nothing here is used by a run. `tests/models/test_plain.py` holds this file equal to `models/transformer.py`, in logits,
loss and gradients, so it says what that file computes, without its switches, caches, meshes and kernels.

Letters name the axes of an array, and the end of its name lists them:

    B batch, T tokens of a row (queries), S the same tokens as keys, V vocabulary, D width,
    H query heads, G key/value heads (KV groups), K head dim, F hidden units of the MLP, L layers.

The model (pre-norm, decoder-only; RMSNorm, RoPE, grouped-query attention, SwiGLU, tied embeddings, no biases):

    x = E[tokens]
    x = x + attention_l(norm(x)),  x = x + mlp_l(norm(x))       l = 1 .. L
    logits = norm(x) E^T

Training: AdamW (decoupled weight decay on matrices alone), gradients clipped at a global norm, and a learning rate that
warms up and then falls as a cosine (`training/step/optimizer.py`, `training/step/schedule.py`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

EPS = 1e-6  # model.norm_eps
THETA = 10000.0  # model.position.rope.theta


class Layer(NamedTuple):
    """Parameters of one layer; stacked over layers, each has a leading axis L."""

    attention_norm_D: Array
    query_Dh: Array  # h = H K, heads outermost
    key_Dg: Array  # g = G K
    value_Dg: Array
    out_hD: Array
    mlp_norm_D: Array
    gate_DF: Array
    up_DF: Array
    down_FD: Array


class Parameters(NamedTuple):
    """All parameters, float32."""

    embedding_VD: Array
    layers: Layer
    norm_D: Array


def rms_norm(x_BTD: Array, scale_D: Array) -> Array:
    """x / sqrt(mean(x^2) + eps) * scale (arXiv 1910.07467)."""
    return x_BTD * jax.lax.rsqrt(jnp.mean(x_BTD**2, axis=-1, keepdims=True) + EPS) * scale_D


def rotate(x_BTHK: Array, positions_T: Array) -> Array:
    """RoPE (arXiv 2104.09864), half pairing: dims i and i + K/2 turn by the angle p * theta^(-2i/K).

    The product of a rotated query at p and a rotated key at r depends on p and r through p - r alone.
    """
    half = x_BTHK.shape[-1] // 2
    frequencies = THETA ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles_T1k = positions_T[:, None, None] * frequencies
    cos, sin = jnp.cos(angles_T1k), jnp.sin(angles_T1k)
    first, second = x_BTHK[..., :half], x_BTHK[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(layer: Layer, x_BTD: Array, num_heads: int, num_kv_heads: int) -> Array:
    """Grouped-query attention (arXiv 2305.13245): query head h reads KV head h // (H / G). G = H is MHA, G = 1 MQA."""
    batch, length, _ = x_BTD.shape
    q_BTHK = (x_BTD @ layer.query_Dh).reshape(batch, length, num_heads, -1)
    k_BSGK = (x_BTD @ layer.key_Dg).reshape(batch, length, num_kv_heads, -1)
    v_BSGK = (x_BTD @ layer.value_Dg).reshape(batch, length, num_kv_heads, -1)
    positions_T = jnp.arange(length)
    q_BTHK, k_BSGK = rotate(q_BTHK, positions_T), rotate(k_BSGK, positions_T)
    group = num_heads // num_kv_heads
    k_BSHK, v_BSHK = jnp.repeat(k_BSGK, group, axis=2), jnp.repeat(v_BSGK, group, axis=2)
    scores_BHTS = jnp.einsum("BTHK,BSHK->BHTS", q_BTHK, k_BSHK) / jnp.sqrt(q_BTHK.shape[-1])
    causal_TS = positions_T[:, None] >= positions_T[None, :]
    weights_BHTS = jax.nn.softmax(jnp.where(causal_TS, scores_BHTS, -jnp.inf), axis=-1)
    out_BTHK = jnp.einsum("BHTS,BSHK->BTHK", weights_BHTS, v_BSHK)
    return out_BTHK.reshape(batch, length, -1) @ layer.out_hD


def mlp(layer: Layer, x_BTD: Array) -> Array:
    """SwiGLU (arXiv 2002.05202): down(silu(gate x) * (up x))."""
    return (jax.nn.silu(x_BTD @ layer.gate_DF) * (x_BTD @ layer.up_DF)) @ layer.down_FD


def logits(parameters: Parameters, tokens_BT: Array, num_heads: int, num_kv_heads: int) -> Array:
    """Returns logits [B, T, V]; those at token t predict token t + 1 and depend on tokens 0 .. t alone."""
    x_BTD = parameters.embedding_VD[tokens_BT]

    def block(x_BTD: Array, layer: Layer) -> tuple[Array, None]:
        x_BTD = x_BTD + attention(layer, rms_norm(x_BTD, layer.attention_norm_D), num_heads, num_kv_heads)
        return x_BTD + mlp(layer, rms_norm(x_BTD, layer.mlp_norm_D)), None

    x_BTD, _ = jax.lax.scan(block, x_BTD, parameters.layers)
    return rms_norm(x_BTD, parameters.norm_D) @ parameters.embedding_VD.T


def loss(
    parameters: Parameters, tokens_BT: Array, targets_BT: Array, weights_BT: Array, num_heads: int, num_kv_heads: int
) -> Array:
    """Returns the mean cross-entropy in nats a token, weighted: padding has weight 0."""
    log_probabilities = jax.nn.log_softmax(logits(parameters, tokens_BT, num_heads, num_kv_heads))
    of_targets_BT = jnp.take_along_axis(log_probabilities, targets_BT[..., None], axis=-1)[..., 0]
    return -jnp.sum(of_targets_BT * weights_BT) / jnp.sum(weights_BT)


def read(state: dict[str, Any]) -> Parameters:
    """Returns the parameters of a checkpoint of the default model, given by their paths, such as "norm.scale"."""
    blocks = {name.removeprefix("blocks."): value for name, value in state.items() if name.startswith("blocks.")}
    layers = Layer(
        attention_norm_D=blocks.pop("attention_norm.scale"),
        query_Dh=blocks.pop("attention.query.kernel"),
        key_Dg=blocks.pop("attention.key.kernel"),
        value_Dg=blocks.pop("attention.value.kernel"),
        out_hD=blocks.pop("attention.out.kernel"),
        mlp_norm_D=blocks.pop("mlp_norm.scale"),
        gate_DF=blocks.pop("mlp.gate.kernel"),
        up_DF=blocks.pop("mlp.up.kernel"),
        down_FD=blocks.pop("mlp.down.kernel"),
    )
    others = set(state) - {"embedding", "norm.scale"} - {name for name in state if name.startswith("blocks.")}
    if blocks or others:
        raise ValueError(f"not the default model: it has {', '.join([*blocks, *sorted(others)])}")
    return Parameters(state["embedding"], layers, state["norm.scale"])
