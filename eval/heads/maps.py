"""Statistics of every head on one batch: of its attention map, and of its output.

See eval/heads/per_head.py for the formulas.

Everything is summed over queries, per row, so that rows can be resampled.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from eval.quality.scoring import token_scores
from models.observed import Layer, observe

HELD = 2**24  # numbers of a layer's maps in memory at once (64 MB); longer rows are processed in pieces
COMPARED = 64  # evenly spaced queries per row on which heads are compared with one another: pairs cost the most

# Means over queries with a choice; those of `share` over queries that see at least two keys.
MEASURES = ("entropy", "entropy_share", "distance", "first", "previous", "largest", "sink")


def compared(length: int) -> np.ndarray:
    """Returns the columns on which heads are compared, int [N]."""
    return np.unique(np.linspace(min(1, length - 1), length - 1, min(COMPARED, length)).round().astype(int))


@functools.partial(jax.jit, static_argnames=("graph", "vocab_size"))
def measured(graph: Any, params: Any, batch: Mapping[str, Array], real_BT: Array, vocab_size: int) -> Any:
    """Returns (losses float32 [B, T], the results of `_layer` for each layer, stacked [L, ...]).

    Args:
        graph: of a Transformer.
        params: its parameters.
        batch: tokens, targets, and optionally positions and segments, int32 [B, T].
        real_BT: bool, tokens that are not padding.
        vocab_size: V.
    """
    model = nnx.merge(graph, params)
    rows = (batch["tokens"], batch.get("positions"), batch.get("segments"))
    hidden, result = observe(model, *rows, look=functools.partial(_layer, real_BT=real_BT))
    losses, _ = token_scores(model, hidden, batch["targets"], vocab_size)
    return losses, jax.tree.map(lambda *layers: jnp.stack(layers), *result)


@functools.partial(jax.jit, static_argnames=("graph", "vocab_size"))
def gated_losses(graph: Any, params: Any, batch: Mapping[str, Array], gates_LH: Array, vocab_size: int) -> Array:
    """Returns float32 losses [B, T] with each head's output multiplied by its gate."""
    model = nnx.merge(graph, params)
    rows = (batch["tokens"], batch.get("positions"), batch.get("segments"))
    hidden, _ = observe(model, *rows, gates_LH=gates_LH)
    return token_scores(model, hidden, batch["targets"], vocab_size)[0]


def _layer(layer: Layer, real_BT: Array) -> dict[str, Array]:
    """Returns a layer's sums over queries by row, [B, ...], and its heads' outputs at the compared queries."""
    choosing_BT = real_BT & (layer.positions() > 0)  # a sequence's first token has no choice
    at = compared(real_BT.shape[1])
    return {**_in_pieces(layer, choosing_BT), **_pairs(layer, at, choosing_BT[:, at]), **_outputs(layer, at, real_BT)}


def _in_pieces(layer: Layer, choosing_BT: Array) -> dict[str, Array]:
    batch, length = choosing_BT.shape
    most = max(1, HELD // (batch * layer.q_BTHK.shape[2] * length))
    size = max(n for n in range(1, min(most, length) + 1) if length % n == 0)
    if size == length:
        return _maps(layer, jnp.arange(length), choosing_BT)
    pieces = jnp.arange(length).reshape(-1, size)
    result = jax.lax.map(lambda at: _maps(layer, at, jnp.take(choosing_BT, at, axis=1)), pieces)
    return {name: x.max(0) if name == "logit" else x.sum(0) for name, x in result.items()}


def _maps(layer: Layer, at: Array, choosing_BN: Array) -> dict[str, Array]:
    scores_BHNS, p_BHNS = layer.maps(at)
    seen_BHNS = scores_BHNS > -jnp.inf
    apart_BNS = layer.positions()[:, at, None] - layer.positions()[:, None]
    first_B1S = layer.positions()[:, None] == 0
    keys = seen_BHNS.sum(-1)
    sink = nothing(layer, p_BHNS)
    entropy = _plogp(p_BHNS, sink)
    most = jnp.log(jnp.maximum(keys + layer.sinks, 2))
    messages = {
        "entropy": entropy,
        "entropy_share": entropy / most,
        "distance": jnp.sum(p_BHNS * apart_BNS[:, None], -1) / jnp.maximum(p_BHNS.sum(-1), 1e-30),
        "first": jnp.sum(p_BHNS * first_B1S[:, None], -1),
        "previous": jnp.sum(p_BHNS * (apart_BNS == 1)[:, None], -1),
        "largest": p_BHNS.max(-1),
        "sink": sink,
    }
    some = (keys[:, 0] + layer.sinks >= 2) & choosing_BN  # the same keys are visible to every head
    counted = dict.fromkeys(messages, choosing_BN) | {"entropy_share": some}
    sums = {name: jnp.sum(jnp.where(counted[name][:, None], x, 0.0), -1) for name, x in messages.items()}
    logit = jnp.max(jnp.where(choosing_BN[:, None, :, None], scores_BHNS, -jnp.inf), (2, 3))
    return sums | {"queries": choosing_BN.sum(-1), "choosing": some.sum(-1), "logit": logit}


def nothing(layer: Layer, p_BHNS: Array) -> Array:
    """Returns the weight on no key, [B, H, N]: of a learned sink."""
    return jnp.maximum(1 - p_BHNS.sum(-1), 0) if layer.sinks else jnp.zeros(p_BHNS.shape[:3])


def _plogp(p: Array, rest: Array) -> Array:
    def term(x: Array) -> Array:
        return jnp.where(x > 0, -x * jnp.log(jnp.where(x > 0, x, 1)), 0)

    return term(p).sum(-1) + term(rest)


def _pairs(layer: Layer, at: np.ndarray, choosing_BN: Array) -> dict[str, Array]:
    """Returns sums over queries of the Jensen-Shannon divergence, and the used kernel's deviation from the maps."""
    p_BHNS = layer.maps(at)[1]
    rest = nothing(layer, p_BHNS)
    entropy = _plogp(p_BHNS, rest)
    heads = (jnp.moveaxis(x, 1, 0)[:, :, None] for x in (p_BHNS, rest, entropy))

    def against(one: tuple[Array, Array, Array]) -> Array:
        p, r, h = one
        apart = _plogp((p + p_BHNS) / 2, (r + rest) / 2) - (h + entropy) / 2
        return jnp.sum(jnp.where(choosing_BN[:, None], jnp.maximum(apart, 0), 0), -1)

    divergence_BHH = jnp.moveaxis(jax.lax.map(against, tuple(heads)), 0, 1)
    H, G = layer.q_BTHK.shape[2], layer.v_BSGV.shape[2]
    values = jnp.repeat(layer.v_BSGV.astype(jnp.float32), H // G, axis=2)
    by_maps = jnp.einsum("bhns,bshv->bnhv", p_BHNS, values)
    real = choosing_BN[..., None, None]
    by_core = layer.attended_BTHV[:, at].astype(jnp.float32)
    most = jnp.max(jnp.where(real, jnp.abs(by_maps), 0))
    apart = jnp.max(jnp.where(real, jnp.abs(by_maps - by_core), 0)) / jnp.maximum(most, 1e-30)
    return {"divergence": divergence_BHH, "compared": choosing_BN.sum(-1), "core_difference": apart}


def _outputs(layer: Layer, at: np.ndarray, real_BT: Array) -> dict[str, Array]:
    """Returns sums over queries of the heads' output norms, cosines and the stream's norm; and the heads' outputs."""
    written_BNHD, real_BN = layer.written(at), real_BT[:, at]
    norm_BNH = jnp.linalg.norm(written_BNHD, axis=-1)
    product = jnp.einsum("bnhd,bngd->bnhg", written_BNHD, written_BNHD)
    both = norm_BNH[..., :, None] * norm_BNH[..., None, :]
    cosine = jnp.where(both > 0, product / jnp.where(both > 0, both, 1), 0)
    stream_BN = jnp.linalg.norm(layer.x_BTD[:, at].astype(jnp.float32), axis=-1)
    return {
        "norm": jnp.sum(jnp.where(real_BN[..., None], norm_BNH, 0), 1),
        "cosine": jnp.sum(jnp.where(real_BN[..., None, None], cosine, 0), 1),
        "stream": jnp.sum(jnp.where(real_BN, stream_BN, 0), 1),
        "tokens": real_BN.sum(-1),
        "real": real_BN,
        "outputs": layer.out_BTHV[:, at].astype(jnp.float32),
    }
