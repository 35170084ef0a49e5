"""Output gate (Gated Attention, Qiu et al., arXiv 2505.06708, section 2.2, position G1, sigmoid, multiplicative)."""

import jax
from jax import Array
from ml_collections import ConfigDict

from models.declared.parameter import Parameters, under
from models.layers import Initializer, Linear


class OutputGate(Linear):
    """out'_h = out_h * sigmoid(x W_g), what a head attended to times a number that its query's token decides on.

    x is the layer's normalized input, or its first `gate.dims` dims (modded-nanogpt reads 12). `head`: one number a
    head, W_g [dims, H]; `element`: one for each output, W_g [dims, H Kv]. W_g has no bias and begins like any other
    matrix, so that gates begin around 1/2. The gate is elementwise: the matmul with W_g counts in FLOPs.
    """

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        super().__init__(initial, under(declared, "gate"))
        self.dims = config.attention.gate.dims

    def applied(self, out_BTHV: Array, x_BTD: Array) -> Array:
        """Returns a layer's head outputs [B, T, H, V] gated by its normalized input [B, T, D] at the queries."""
        with jax.named_scope("output_gate"):
            gate = jax.nn.sigmoid(self(x_BTD[..., : self.dims]))
            return out_BTHV * gate.reshape(*out_BTHV.shape[:3], -1)
