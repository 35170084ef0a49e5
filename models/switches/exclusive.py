"""Exclusive self-attention (XSA; Zhai, arXiv 2603.09078): heads give what lies apart from their token's own value."""

import jax
import jax.numpy as jnp
from jax import Array

TINY = 1e-12  # added to |v|^2, so that a value of zeros takes nothing away


def exclusive(out_BTHV: Array, v_BTGV: Array) -> Array:
    """Returns z = y - (y . v / |v|^2) v of each head, y its output and v the value of the query's own token.

    Computed in float32. A head reads the value head that it attends with, h // (H / G). The first token of a sequence
    sees itself alone, so its output becomes zero.

    Args:
        out_BTHV: what the heads attended to.
        v_BTGV: values of the same tokens.
    """
    B, T, H, V = out_BTHV.shape
    with jax.named_scope("exclusive"):
        y = out_BTHV.astype(jnp.float32).reshape(B, T, v_BTGV.shape[2], -1, V)
        v = v_BTGV.astype(jnp.float32)[:, :, :, None]
        share = jnp.sum(y * v, axis=-1, keepdims=True) / (jnp.sum(v * v, axis=-1, keepdims=True) + TINY)
        return (y - share * v).reshape(B, T, H, V).astype(out_BTHV.dtype)
