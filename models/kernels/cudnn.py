"""cuDNN's fused attention, through `jax.nn.dot_product_attention`; NVIDIA GPUs, 16 bit."""

import jax
from jax import Array

from models.kernels.masks import Masking
from models.kernels.xla import jax_nn, same_width
from models.positions.scheme import BiasFunction


def cudnn(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    *,
    bias: BiasFunction | None,
    soft_cap: float | None,
    scale: float,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; `choice.obstacle` says what it cannot do.

    Causal self-attention, with a window or not, keeps its mask inside the kernel. Anything else (segments, positions,
    T != S, a bias) costs a whole mask or bias array.
    """
    if soft_cap is not None:
        raise NotImplementedError("cuDNN attention has no soft cap")
    if bias is not None or not masking.exact or masking.offset != 0:
        return jax_nn(q_BTHK, k_BSGK, v_BSGV, masking, bias=bias, scale=scale, implementation="cudnn")
    window = masking.window if masking.causal else None
    q_BTHK, k_BSGK, v_BSGK = same_width(q_BTHK, k_BSGK, v_BSGV)
    out = jax.nn.dot_product_attention(
        q_BTHK,
        k_BSGK,
        v_BSGK,
        scale=scale,
        is_causal=masking.causal,
        # jax.nn counts the keys before the query; the query's own key makes one more.
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )
    return out[..., : v_BSGV.shape[3]]
