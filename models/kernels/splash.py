"""JAX's splash attention for TPUs (Pallas): blocks that the mask empties are never computed."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels import pallas
from models.kernels.kernel import Kernel, Needs, Scoring
from models.kernels.masks import Masking
from models.padding import raised


def splash(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; KERNEL says what it cannot do.

    What differs from JAX's own function: it applies no scale, so queries are multiplied by it first (in their dtype);
    T and S are padded to whole blocks; a window of W keys is W - 1 before the query's own; tokens of segment 0 see one
    another inside the kernel, which keeps their rows finite, and become zeros after it.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as ops

    if scoring.bias is not None:
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
        ops.MultiHeadMask([mask] * H), block_sizes=sizes, attn_logits_soft_cap=scoring.soft_cap
    )
    ids = None
    # Causal order hides the keys that padding adds; where nothing does, segments must.
    if masking.q_segments is not None or (not masking.causal and kv_len > S):
        ids = ops.SegmentIds(
            q=pallas.segments(masking.q_segments, B, T, q_len), kv=pallas.segments(masking.kv_segments, B, S, kv_len)
        )
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BTHK * jnp.asarray(scoring.scale, q_BTHK.dtype), k_BSGK, v_BSGV))
    q, k, v = raised(q, 2, q_len), raised(k, 2, kv_len), raised(v, 2, kv_len)
    wide = None if scoring.sinks is None else scoring.sinks.astype(jnp.float32)
    out = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, ids, wide))(q, k, v, ids)
    out_BTHV = jnp.swapaxes(out[:, :, :T], 1, 2)
    if masking.q_segments is None:
        return out_BTHV
    return jnp.where((masking.q_segments != 0)[:, :, None, None], out_BTHV, 0)


def _lacks(needs: Needs) -> str | None:
    if needs.bias:
        return "has no bias, which the positions add to the scores; flash, blocked and reference have"
    if needs.positions and needs.window is not None:
        return "counts a window in rows, and positions given (packing, padding) may have gaps; blocked counts them"
    if (needs.positions or needs.segments) and not needs.aligned:
        return "needs queries and keys in the order of rows, and a KV cache has not"
    if needs.q_len > needs.kv_len:
        return f"needs a key for each query, and there are {needs.q_len} queries and {needs.kv_len} keys"
    return None


KERNEL = Kernel(splash, rank=2, platforms=("tpu",), lacks=_lacks, interpreted="tpu", calls={"tpu": ""})
