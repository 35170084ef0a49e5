"""Attention in the few plain lines that every other kernel is compared with; also decoding's kernel."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.kernels.kernel import Kernel, Scoring
from models.kernels.masks import Masking
from models.switches.weighting import Weighting


def reference(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
) -> Array:
    """Returns softmax(cap(scale q.k) + bias + scores, over the visible keys and the sink) v, [B, T, H, V] in q's dtype.

    Scores and softmax are float32. Query head h reads key/value head h // (H/G). The mask is applied once, after the
    additions; a query that sees no key gets zeros, and finite gradients. The sink's value is zero. A
    `weighting` takes the softmax's place; where it leaves fewer heads, those of the output are as many.
    """
    B, T = q_BTHK.shape[:2]
    with jax.named_scope("attention_scores"):
        s = scored(q_BTHK, k_BSGK, masking, scoring)
        weights = weighed(s, scoring.sinks, scoring.weighting, v_BSGV.shape[2]).astype(v_BSGV.dtype)
    with jax.named_scope("value_mixing"):
        # In this order of axes einsum multiplies weights by values; transposed, the CPU took four times as long.
        out = jnp.einsum("bgrts,bsgk->bgrtk", weights, v_BSGV, preferred_element_type=s.dtype)
        return out.transpose(0, 3, 1, 2, 4).reshape(B, T, -1, v_BSGV.shape[3]).astype(q_BTHK.dtype)


def scored(q_BTHK: Array, k_BSGK: Array, masking: Masking, scoring: Scoring) -> Array:
    """Returns the scores as the softmax takes them, [B, G, H/G, T, S], float32 or more; -inf where a key is hidden."""
    B, T, H, K = q_BTHK.shape
    S, G = k_BSGK.shape[1:3]
    dtype = jnp.promote_types(q_BTHK.dtype, jnp.float32)
    q = q_BTHK.reshape(B, T, G, H // G, K)
    with jax.named_scope("query_key"):
        s = jnp.einsum("btgrk,bsgk->bgrts", q, k_BSGK, preferred_element_type=dtype)
    s = scoring.scale * s
    if (soft_cap := scoring.soft_cap) is not None:
        s = soft_cap * jnp.tanh(s / soft_cap)
    if (weighting := scoring.weighting) is not None and weighting.mix is not None:
        s = weighting.mix(s.reshape(B, H, T, S)).reshape(s.shape)
    if scoring.bias is not None:
        q_places, kv_places = (jnp.asarray(places) for places in masking.places())
        s += scoring.bias(q_places, kv_places).reshape(-1, G, H // G, T, S)
    mask = masking.visible()
    if scoring.scores is not None:
        # Rows that are aligned lie in the order of their positions.
        order = None if masking.aligned else masking.kv_positions
        s += scoring.scores(q_BTHK, s.reshape(B, H, T, S), mask, order).reshape(s.shape)
    if mask is not None:
        s = jnp.where(mask[:, None, None], s, -jnp.inf)
    return s


def weighed(s_BGRTS: Array, sinks: Array | None, weighting: Weighting | None, value_heads: int) -> Array:
    """Returns the weights of scores, [B, G', H'/G', T, S] for G' value heads."""
    if weighting is None:
        return softmax(s_BGRTS, sinks)
    shape = s_BGRTS.shape
    s_BHTS = s_BGRTS.reshape(shape[0], -1, *shape[3:])

    def plain(s: Array, sinks: Array | None) -> Array:
        return softmax(s.reshape(shape), sinks).reshape(s.shape)

    weights = weighting.weights(s_BHTS, sinks, plain)
    return weights.reshape(shape[0], value_heads, -1, *shape[3:])


def softmax(s_BGRTS: Array, sinks: Array | None) -> Array:
    """Returns the weights of scores, [B, G, H/G, T, S]; with sinks [H] they add up to less than 1, and to 0 of none."""
    G, R = s_BGRTS.shape[1:3]
    sink = None if sinks is None else sinks.astype(s_BGRTS.dtype).reshape(G, R, 1, 1)
    largest = jnp.max(s_BGRTS, axis=-1, keepdims=True)
    largest = lax.stop_gradient(largest if sink is None else jnp.maximum(largest, sink))
    weights = jnp.exp(s_BGRTS - jnp.where(jnp.isfinite(largest), largest, 0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    total = total if sink is None else total + jnp.exp(sink - largest)
    return weights / jnp.where(total == 0, 1, total)


KERNEL = Kernel(
    reference,
    rank=0,
    wants=lambda needs: needs.scores or needs.weighting is not None or needs.q_len == 1,
    any_dims=True,
)
