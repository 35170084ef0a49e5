"""cuDNN's fused attention, through `jax.nn.dot_product_attention`; NVIDIA GPUs, 16 bit."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels.kernel import Kernel, Needs, Scoring
from models.kernels.masks import Masking
from models.kernels.xla import jax_nn, same_width


def cudnn(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; KERNEL says what it cannot do.

    Causal self-attention, with a window or not, keeps its mask inside the kernel. Anything else (segments, positions,
    T != S, a bias) costs a whole mask or bias array.
    """
    if scoring.soft_cap is not None:
        raise NotImplementedError("cuDNN attention has no soft cap")
    if scoring.bias is not None or not masking.exact or masking.offset != 0:
        return jax_nn(q_BTHK, k_BSGK, v_BSGV, masking, scoring, "cudnn")
    window = masking.window if masking.causal else None
    q_BTHK, k_BSGK, v_BSGK = same_width(q_BTHK, k_BSGK, v_BSGV)
    out = jax.nn.dot_product_attention(
        q_BTHK,
        k_BSGK,
        v_BSGK,
        scale=scoring.scale,
        is_causal=masking.causal,
        # jax.nn counts the keys before the query; the query's own key makes one more.
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
    return out[..., : v_BSGV.shape[3]]


def _inside(needs: Needs) -> bool:
    """Tells whether cuDNN does the whole job inside its kernel, with no mask or bias as an array."""
    outside = needs.positions and not (needs.aligned and needs.window is None)
    outside = outside or needs.bias or needs.segments or needs.q_len != needs.kv_len
    # Its backward pass of rows of an odd length does not compile with every mask.
    return not outside and not needs.q_len % 2


def _lacks(needs: Needs) -> str | None:
    dtype = jnp.dtype(needs.dtype)
    if dtype not in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)):
        return f"computes in bfloat16 or float16, not {dtype.name} (model.dtype)"
    if needs.width % 8 or needs.width > 128:
        return f"needs a head_dim that is a multiple of 8, 128 at most, not {needs.width} (model.head_dim)"
    if needs.bias and needs.batch != 1:
        return "gives the gradient of a bias at batch 1 alone (jax #30593); blocked gives it at any"
    if needs.bias and (needs.q_len % 2 or needs.kv_len % 2):
        return f"with a bias needs even lengths, not {needs.q_len} and {needs.kv_len}"
    if needs.trains and needs.q_len % 2:
        return f"has no backward pass at an odd length, {needs.q_len} (data.length)"
    return None


KERNEL = Kernel(
    cudnn,
    rank=1,
    wants=_inside,
    platforms=("gpu",),
    soft_cap=False,
    sinks=False,
    lacks=_lacks,
    calls={"gpu": "__cudnn$fmha"},
)
