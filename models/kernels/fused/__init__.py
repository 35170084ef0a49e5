"""One attention kernel for every scheme, in Pallas: scores are changed inside it, and memory is linear in length.

As in FlashAttention-2 (Dao, arXiv 2307.08691), with the scores modified by functions of positions as in FlexAttention
(Dong et al., arXiv 2412.05496): a bias by head (`models.positions.head_bias`), the soft cap, sinks, windows, packed
documents and padding. The forward pass keeps the output and the logsumexp of each row; the backward pass computes the
weights again, once by blocks of queries (their gradient, and that of the bias's scalars) and once by blocks of keys.
On GPUs through Triton (`gpu`), on TPUs through Mosaic (`tpu`).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from models.kernels import pallas
from models.kernels.block import SAVED
from models.kernels.fused.call import Call, padded_places
from models.kernels.fused.scalars import Layout, pack
from models.kernels.fused.tiles import Tiles, tiles_for, width_of
from models.kernels.kernel import Kernel, Needs, Scoring
from models.kernels.masks import Masking
from models.padding import raised
from models.platform import device_kind
from models.positions.head_bias import HeadBias

# Arrays by name: what masks and biases read of positions.
Given = dict[str, Array]


def fused(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
    *,
    tiles: Tiles | None = None,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; differentiable backwards, once.

    Products are of the inputs' dtype and added up in float32; scores and softmax are float32. Blocks that the causal
    order, a window, positions or segments hide are skipped. Keys and values are never repeated. Lengths are padded to
    whole blocks, and on a GPU head dims to a power of two.

    Args:
        q_BTHK: queries.
        k_BSGK: keys.
        v_BSGV: values, maybe of another dim than the keys.
        masking: what is visible.
        scoring: how weights are made; the bias is a `HeadBias`, and gradients reach its scalars.
        tiles: block sizes; None: the table's for the device (`tiles.tiles_for`).

    Raises:
        NotImplementedError: a bias that is not a `HeadBias`.
    """
    bias, sinks = scoring.bias, scoring.sinks
    if bias is not None and not isinstance(bias, HeadBias):
        raise NotImplementedError("the fused kernel takes a bias by head alone")
    platform = "tpu" if pallas.platform() == "tpu" else "gpu"
    T, S, K, V = q_BTHK.shape[1], k_BSGK.shape[1], q_BTHK.shape[3], v_BSGV.shape[3]
    call = Call.of(
        masking,
        soft_cap=scoring.soft_cap,
        scale=scoring.scale,
        layout=None if bias is None else Layout.of(bias),
        tiles=tiles or tiles_for(platform, device_kind(), q_BTHK.dtype, max(K, V), T, S),
        platform=platform,
        interpret=pallas.interpreted(),
    )
    scalars = None if bias is None else pack(bias)
    wide = None if sinks is None else sinks.astype(jnp.float32)
    return _with_derivative(call)(q_BTHK, k_BSGK, v_BSGV, wide, scalars, padded_places(call, masking))


def passes_of(call: Call) -> ModuleType:
    """Returns the module with the passes of the call's platform: forward, backward_queries and backward_keys."""
    from models.kernels.fused import gpu, tpu

    return tpu if call.platform == "tpu" else gpu


def _with_derivative(call: Call) -> Callable[[Array, Array, Array, Array | None, Array | None, Given], Array]:
    """Returns the function of (q, k, v, sinks, scalars, places) with its own backward pass."""
    passes = passes_of(call)

    def whole(q: Array, k: Array, v: Array, sinks: Array | None, scalars: Array | None, given: Given) -> Any:
        arrays = padded(call, q, k, v, scalars)
        if sinks is not None:
            arrays["sinks"] = sinks
        out, logsumexp = passes.forward(call, arrays, given)
        return out[:, : call.T, :, : v.shape[3]], logsumexp

    @jax.custom_vjp
    def attention(q: Array, k: Array, v: Array, sinks: Any, scalars: Any, given: Given) -> Array:
        out: Array = whole(q, k, v, sinks, scalars, given)[0]
        return out

    def forward(q: Array, k: Array, v: Array, sinks: Any, scalars: Any, given: Given) -> tuple[Array, tuple]:
        out, logsumexp = (checkpoint_name(x, SAVED) for x in whole(q, k, v, sinks, scalars, given))
        return out, (q, k, v, sinks, scalars, given, out, logsumexp)

    def backward(saved: tuple, d_out: Array) -> tuple:
        q, k, v, sinks, scalars, given, out, logsumexp = saved
        with jax.named_scope("delta"):
            delta_BHT = jnp.einsum("bthv,bthv->bht", d_out, out, preferred_element_type=jnp.float32)
        arrays = padded(call, q, k, v, scalars, d_out.astype(q.dtype))
        arrays |= {"logsumexp": logsumexp, "delta": raised(delta_BHT, 2, call.padded[0])}
        d_q, d_scalars = passes.backward_queries(call, arrays, given)
        d_k, d_v = passes.backward_keys(call, arrays, given)
        if scalars is not None and d_scalars is None:
            d_scalars = jnp.zeros_like(scalars)
        d_sinks = None
        if sinks is not None:
            shares = jnp.exp(sinks[:, None] - logsumexp[:, :, : call.T])
            d_sinks = -jnp.sum(shares * delta_BHT, axis=(0, 2))
        d_q, d_k, d_v = (d_x[:, : x.shape[1], :, : x.shape[3]] for d_x, x in ((d_q, q), (d_k, k), (d_v, v)))
        return d_q, d_k, d_v, d_sinks, d_scalars, None

    attention.defvjp(forward, backward)
    return attention


def padded(
    call: Call, q: Array, k: Array, v: Array, scalars: Array | None, d_out: Array | None = None
) -> dict[str, Array]:
    """Returns the arrays of every pass by name, at whole blocks; those that are None are left out."""
    T, S = call.padded
    given = {"q": (q, T), "k": (k, S), "v": (v, S), "d_out": (d_out, T)}
    arrays = {name: _raised(call, x, length) for name, (x, length) in given.items() if x is not None}
    return arrays if scalars is None else {**arrays, "scalars": scalars}


def _raised(call: Call, x: Array, length: int) -> Array:
    """Returns x [B, T, H, K] with T raised to a length and, on a GPU, K to a power of two."""
    return raised(raised(x, 1, length), 3, width_of(x.shape[3]) if call.platform == "gpu" else x.shape[3])


WIDEST = 256  # head dim that blocks fit in a chip's fast memory with


def _lacks(needs: Needs) -> str | None:
    if needs.bias and not needs.by_head:
        return "takes a bias that is defined by head (models/positions/head_bias.py), and this scheme's is not"
    if needs.width > WIDEST:
        return f"needs a head_dim of {WIDEST} at most, not {needs.width} (model.head_dim)"
    return None


KERNEL = Kernel(
    fused,
    rank=3,
    platforms=("gpu", "tpu"),
    lacks=_lacks,
    interpreted="gpu",
    calls={"gpu": "fused", "tpu": "fused"},
)
