"""JAX's flash attention for TPUs (Pallas): the kernel that takes a bias there, as a whole array."""

import jax.numpy as jnp
from jax import Array

from models.kernels import pallas
from models.kernels.kernel import WHOLE_SCORES, Kernel, Scoring
from models.kernels.masks import Masking
from models.padding import raised
from models.positions.scheme import BiasFunction

# Added to the scores of hidden keys; the kernel's own value. Scores may be added to it and it stays finite.
HIDDEN = -0.7 * float(jnp.finfo(jnp.float32).max)


def flash(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; KERNEL says what it cannot do.

    Causal self-attention, with segments or not, keeps its mask inside the kernel. A bias, a window, positions or T != S
    cost an array [B, H, T, S] in float32, and its gradient another. What differs from JAX's own function: that adds its
    bias before it scales, so here queries are scaled first (in their dtype); and its mask is added to the bias, which
    a large bias could lift, so hidden keys have no bias. K and V are padded to the larger of the two (above 128, to a
    multiple of 128), T and S to whole blocks, and keys and values are repeated for the query heads that share them.
    """
    from jax.experimental.pallas.ops.tpu import flash_attention as ops

    if scoring.soft_cap is not None:
        raise NotImplementedError("TPU flash attention has no soft cap")
    B, T, H, K = q_BTHK.shape
    S, G, V = v_BSGV.shape[1:]
    (q_len, block_q), (kv_len, block_k) = pallas.whole(T), pallas.whole(S)
    width = max(K, V)
    width = width if width <= pallas.LANES else -(-width // pallas.LANES) * pallas.LANES

    def laid(x: Array, length: int, repeats: int) -> Array:
        x = jnp.repeat(jnp.swapaxes(x, 1, 2), repeats, axis=1)
        return raised(raised(x, 2, length), 3, width)

    q = laid(q_BTHK * jnp.asarray(scoring.scale, q_BTHK.dtype), q_len, 1)
    k, v = laid(k_BSGK, kv_len, H // G), laid(v_BSGV, kv_len, H // G)
    in_kernel = masking.by_index and masking.offset == 0
    causal = masking.causal and in_kernel
    added = ids = None
    if scoring.bias is not None or not in_kernel or (masking.causal and masking.window is not None):
        added, seen = _added(masking, scoring.bias, causal, (B, H, T, S))
        added = raised(raised(added, 3, kv_len, HIDDEN), 2, q_len)
        if causal:
            # The kernel adds its own where a key comes later, and twice would be infinite.
            later = jnp.arange(q_len)[:, None] < jnp.arange(kv_len)
            added = jnp.where(later, 0, added)
    else:
        seen = None if masking.q_segments is None else masking.q_segments != 0
        if masking.q_segments is not None or (not causal and kv_len > S):
            ids = ops.SegmentIds(
                q=pallas.segments(masking.q_segments, B, T, q_len),
                kv=pallas.segments(masking.kv_segments, B, S, kv_len),
            )
    sizes = ops.BlockSizes(
        block_q=block_q,
        block_k_major=block_k,
        block_k=block_k,
        block_b=1,
        block_q_major_dkv=block_q,
        block_k_major_dkv=block_k,
        block_k_dkv=block_k,
        block_q_dkv=block_q,
        block_k_major_dq=block_k,
        block_k_dq=block_k,
        block_q_dq=block_q,
    )
    out = ops.flash_attention(q, k, v, added, ids, causal=causal, block_sizes=sizes)
    out_BTHV = jnp.swapaxes(out[:, :, :T, :V], 1, 2)
    return out_BTHV if seen is None else jnp.where(seen[:, :, None, None], out_BTHV, 0)


def _added(
    masking: Masking, bias: BiasFunction | None, causal: bool, shape: tuple[int, int, int, int]
) -> tuple[Array, Array | None]:
    """Returns what is added to the scores, float32 [B, H, T, S], and which queries see a key (None: all)."""
    added = jnp.zeros(shape, jnp.float32)
    if bias is not None:
        q_places, kv_places = (jnp.asarray(places) for places in masking.places())
        added = jnp.broadcast_to(bias(q_places, kv_places).astype(jnp.float32), shape)
    mask_BTS = masking.visible()
    if mask_BTS is None:
        return added, None
    seen = jnp.any(mask_BTS, axis=2) if masking.empty_rows else None
    return jnp.where(mask_BTS[:, None], added, HIDDEN), seen


KERNEL = Kernel(
    flash,
    rank=4,
    wants=lambda needs: needs.bias and needs.pairs < WHOLE_SCORES,
    platforms=("tpu",),
    soft_cap=False,
    sinks=False,
    interpreted="tpu",
    calls={"tpu": ""},
)
