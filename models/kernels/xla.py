"""`jax.nn.dot_product_attention` on XLA, with its masks corrected to ours."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels.kernel import WHOLE_SCORES, Kernel, Scoring
from models.kernels.masks import Masking


def xla(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype.

    What differs from jax.nn: its causal mask is top-left where T != S and its window counts one key more, so the mask
    is always ours, given whole; and a query that sees no key gets zeros where jax.nn gives the values' mean. The
    weights are rounded to the values' dtype before they meet the values. A sink is one more key, whose score is the
    sink by way of the bias, and whose value is zero.
    """
    if scoring.soft_cap is not None:
        raise NotImplementedError("jax.nn.dot_product_attention has no soft cap")
    return jax_nn(q_BTHK, k_BSGK, v_BSGV, masking, scoring, "xla")


def jax_nn(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
    implementation: str,
) -> Array:
    """Calls jax.nn with whole mask and bias arrays, and gives zeros where no key is visible."""
    bias_BHTS, sinks = None, scoring.sinks
    if scoring.bias is not None:
        q_places, kv_places = (jnp.asarray(places) for places in masking.places())
        bias_BHTS = scoring.bias(q_places, kv_places)
    mask_BTS = masking.visible()
    mask_BHTS = None if mask_BTS is None else mask_BTS[:, None]
    if implementation == "cudnn":
        shape = (q_BTHK.shape[0], q_BTHK.shape[2], masking.q_len, masking.kv_len)
        # cuDNN takes neither float32 biases nor masks that broadcast over queries or rows (jax #28974).
        bias_BHTS = None if bias_BHTS is None else bias_BHTS.astype(q_BTHK.dtype)
        mask_BHTS = None if mask_BHTS is None else jnp.broadcast_to(mask_BHTS, shape)
    if sinks is not None:
        k_BSGK, v_BSGV = (_one_more(x, 1, 0) for x in (k_BSGK, v_BSGV))
        mask_BHTS = None if mask_BHTS is None else _one_more(mask_BHTS, 3, True)
        if bias_BHTS is None:
            bias_BHTS = jnp.zeros((1, q_BTHK.shape[2], masking.q_len, masking.kv_len))
        sink = jnp.broadcast_to(sinks.astype(bias_BHTS.dtype)[None, :, None, None], (*bias_BHTS.shape[:3], 1))
        bias_BHTS = jnp.concatenate([bias_BHTS, sink], axis=3)
    q_BTHK, k_BSGK, v_BSGK = same_width(q_BTHK, k_BSGK, v_BSGV)
    out = jax.nn.dot_product_attention(
        q_BTHK,
        k_BSGK,
        v_BSGK,
        bias_BHTS,
        mask_BHTS,
        scale=scoring.scale,
        implementation=implementation,  # type: ignore[call-overload]
    )
    out = out[..., : v_BSGV.shape[3]]
    if masking.empty_rows and mask_BTS is not None:
        seen = jnp.any(mask_BTS, axis=-1)[:, :, None, None]
        out = jnp.where(seen, out, 0)
    return out


def same_width(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Returns q, k and v with zeros added to the narrower ones' last axis: jax.nn takes no other.

    That costs the products with the zeros: 1/6 of them where V is 2/3 of K, as in DeepSeek-V2.
    """
    width = max(k.shape[3], v.shape[3])

    def widened(x: Array) -> Array:
        return jnp.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[3])]) if x.shape[3] < width else x

    return widened(q), widened(k), widened(v)


def _one_more(x: Array, axis: int, value: float) -> Array:
    return jnp.pad(x, [(0, int(i == axis)) for i in range(x.ndim)], constant_values=value)


KERNEL = Kernel(
    xla,
    rank=5,
    wants=lambda needs: needs.platform != "cpu" and needs.pairs < WHOLE_SCORES,
    soft_cap=False,
    any_dims=True,
)
