"""JAX's splash attention for TPUs (Pallas): blocks that the mask empties are never computed."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels import pallas
from models.kernels.masks import Masking
from models.padding import raised
from models.positions.scheme import BiasFunction


def splash(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    *,
    bias: BiasFunction | None,
    soft_cap: float | None,
    scale: float,
    sinks: Array | None = None,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; `choice.obstacle` says what it cannot do.

    What differs from JAX's own function: it applies no scale, so queries are multiplied by it first (in their dtype);
    T and S are padded to whole blocks; a window of W keys is W - 1 before the query's own; tokens of segment 0 see one
    another inside the kernel, which keeps their rows finite, and become zeros after it.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as ops

    if bias is not None:
        raise NotImplementedError("splash attention has no bias")
    B, T, H, _ = q_BTHK.shape
    S = k_BSGK.shape[1]
    (q_len, block_q), (kv_len, block_kv) = pallas.whole(T), pallas.whole(S)
    sizes = ops.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_kv_compute=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_kv_dkv_compute=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
    )
    shape = (q_len, kv_len)
    mask: ops.Mask
    if not masking.causal:
        mask = ops.FullMask(shape)
    elif masking.window is None:
        mask = ops.CausalMask(shape, offset=masking.offset)
    else:
        mask = ops.LocalMask(shape, window_size=(masking.window - 1, 0), offset=masking.offset)
    kernel = ops.make_splash_mha_single_device(
        ops.MultiHeadMask([mask] * H), block_sizes=sizes, attn_logits_soft_cap=soft_cap
    )
    ids = None
    # Causal order hides the keys that padding adds; where nothing does, segments must.
    if masking.q_segments is not None or (not masking.causal and kv_len > S):
        ids = ops.SegmentIds(
            q=pallas.segments(masking.q_segments, B, T, q_len), kv=pallas.segments(masking.kv_segments, B, S, kv_len)
        )
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BTHK * jnp.asarray(scale, q_BTHK.dtype), k_BSGK, v_BSGV))
    q, k, v = raised(q, 2, q_len), raised(k, 2, kv_len), raised(v, 2, kv_len)
    wide = None if sinks is None else sinks.astype(jnp.float32)
    out = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, ids, wide))(q, k, v, ids)
    out_BTHV = jnp.swapaxes(out[:, :, :T], 1, 2)
    if masking.q_segments is None:
        return out_BTHV
    return jnp.where((masking.q_segments != 0)[:, :, None, None], out_BTHV, 0)
