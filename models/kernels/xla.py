"""`jax.nn.dot_product_attention` on XLA, with its masks corrected to ours."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels.masks import Masking
from models.positions.scheme import BiasFunction


def xla(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGK: Array,
    masking: Masking,
    *,
    bias: BiasFunction | None,
    soft_cap: float | None,
    scale: float,
) -> Array:
    """Returns attention [B, T, H, K] in q's dtype.

    What differs from jax.nn: its causal mask is top-left where T != S and its window counts one key more, so the mask
    is always ours, given whole; and a query that sees no key gets zeros where jax.nn gives the values' mean. The
    weights are rounded to the values' dtype before they meet the values.
    """
    if soft_cap is not None:
        raise NotImplementedError("jax.nn.dot_product_attention has no soft cap")
    return jax_nn(q_BTHK, k_BSGK, v_BSGK, masking, bias=bias, scale=scale, implementation="xla")


def jax_nn(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGK: Array,
    masking: Masking,
    *,
    bias: BiasFunction | None,
    scale: float,
    implementation: str,
) -> Array:
    """Calls jax.nn with whole mask and bias arrays, and gives zeros where no key is visible."""
    bias_BHTS = mask_BTS = None
    if bias is not None:
        q_places, kv_places = (jnp.asarray(places) for places in masking.places())
        bias_BHTS = bias(q_places, kv_places)
    mask_BTS = masking.visible()
    mask_BHTS = None if mask_BTS is None else mask_BTS[:, None]
    if implementation == "cudnn":
        shape = (q_BTHK.shape[0], q_BTHK.shape[2], masking.q_len, masking.kv_len)
        # cuDNN takes neither float32 biases nor masks that broadcast over queries or rows (jax #28974).
        bias_BHTS = None if bias_BHTS is None else bias_BHTS.astype(q_BTHK.dtype)
        mask_BHTS = None if mask_BHTS is None else jnp.broadcast_to(mask_BHTS, shape)
    out = jax.nn.dot_product_attention(
        q_BTHK,
        k_BSGK,
        v_BSGK,
        bias_BHTS,
        mask_BHTS,
        scale=scale,
        implementation=implementation,  # type: ignore[call-overload]
    )
    if masking.empty_rows and mask_BTS is not None:
        seen = jnp.any(mask_BTS, axis=-1)[:, :, None, None]
        out = jnp.where(seen, out, 0)
    return out
