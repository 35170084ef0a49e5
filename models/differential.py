"""Differential attention (Differential Transformer, Ye et al., arXiv 2410.05258, section 2.1): two maps, subtracted."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from models.attention import Attention, Rows
from models.declared.parameter import Parameters
from models.layers import Initializer, Norm
from models.switches.weighting import Weighting


class DifferentialAttention(Attention):
    """Query heads in pairs: head p of H/2 gives (1 - l0) norm((softmax(q1 k1) - lambda softmax(q2 k2)) v).

    q1 and q2 are query heads 2p and 2p + 1, each with the key head that grouped-query attention gives it, and v is one
    value of 2 K dims, of value head p // (H / G). So heads have the baseline's K dims in queries and keys and there are
    half as many of twice the width in values and outputs: with the same H, G and K, all four matrices and the FLOPs of
    scores and sums equal those of `gqa`. The maps are subtracted before they meet the values.

        lambda = exp(a1 . b1) - exp(a2 . b2) + l0        l0 = 0.8 - 0.6 exp(-0.3 l), l = 0 .. L - 1 the layer

    a and b are learned vectors of K dims, one of each for a layer, drawn at a deviation of 0.1 (or `init_std`); `norm`
    is RMSNorm over the 2 K dims with a learned scale that heads share (the authors' code; the paper's GroupNorm has one
    group a head).
    """

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        super().__init__(config, initial, declared)
        self.lambdas = initial.parameter(declared["lambdas"])
        norm = Norm.maybe(initial, declared, "head_norm", eps=config.norm_eps)
        assert norm is not None
        self.head_norm = norm

    def project(self, x_BTD: Array, *, last_query: bool = False, values: Array | None = None) -> Any:
        """Returns q [B, T, H, K], and k [B, T, G, K] and v [B, T, G/2, 2 K] where they are its own."""
        q_BTHK, kv = super().project(x_BTD, last_query=last_query, values=values)
        if "v" in kv:
            kv["v"] = kv["v"].reshape(*kv["v"].shape[:2], self.num_kv_heads // 2, 2 * self.head_dim)
        return q_BTHK, kv

    def weighting(self, rows: Rows, forgotten: Array | None = None) -> Weighting:
        """Returns what subtracts the second map of each pair from the first."""
        with jax.named_scope("differential"):
            products = jnp.sum(self.lambdas[...][0::2] * self.lambdas[...][1::2], axis=-1)
            factor = jnp.exp(products[0]) - jnp.exp(products[1]) + first_lambda(rows.layer)
        return Weighting(self.weighting_name or "", combine=functools.partial(_subtracted, factor=factor))

    def finished(self, out_BTHV: Array, x_BTD: Array, rows: Rows, v_BTGV: Array | None = None) -> Array:
        """Returns the heads' outputs normalized, each by itself, and scaled, before the switches."""
        scaled = (1 - first_lambda(rows.layer)) * self.head_norm(out_BTHV)
        return super().finished(scaled.astype(out_BTHV.dtype), x_BTD, rows, v_BTGV)


def first_lambda(layer: Array | int) -> Array:
    """Returns l0 of a layer, counted from 0."""
    return 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(layer, jnp.float32))


def _subtracted(weights_BHTS: Array, factor: Array) -> Array:
    return weights_BHTS[:, 0::2] - factor * weights_BHTS[:, 1::2]
