"""What a layer's values are mixed with: the first layer's values, and values that the token itself looks up."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.declared.parameter import Parameters
from models.layers import Initializer


class ValueMix(nnx.Module):
    """v' = a1 v_1 + a2 v, then v'' = b1 E[token] + b2 v', of each token's values before they are cached.

    v_1 are the values of the first layer, which it mixes with its own like any other (value residual: ResFormer, Zhou
    et al., arXiv 2410.17897, section 3.2). `fixed`: a1 = a2 = 1/2, which leaves the first layer as it is; `learned`:
    two numbers per layer that begin there. E is a table [V, G Kv] of value embeddings, one for all layers (`shared`) or
    one a layer (`layer`), drawn at a deviation of 1 unless `init_std` is set; b1 and b2 are learned by layer and begin
    at 1/2 (modded-nanogpt, whose tables serve some layers alone).
    """

    def __init__(self, initial: Initializer, declared: Parameters) -> None:
        self.residual_lambdas = initial.maybe(declared, "residual_lambdas")
        self.embedding_lambdas = initial.maybe(declared, "embedding_lambdas")
        self.table = initial.maybe(declared, "table")

    def __call__(self, v_BTGV: Array, first_BTGV: Array | None, shared_BTE: Array | None, tokens_BT: Array) -> Array:
        """Returns the mixed values of the tokens of a call.

        Args:
            v_BTGV: the layer's own.
            first_BTGV: the first layer's, where they are mixed in.
            shared_BTE: of the table that all layers share, [B, T, G Kv], if there is one.
            tokens_BT: int32, of which a layer looks up its own table.
        """
        dtype = v_BTGV.dtype
        with jax.named_scope("value_mix"):
            if first_BTGV is not None:
                a = jnp.full(2, 0.5) if self.residual_lambdas is None else self.residual_lambdas[...]
                v_BTGV = a[0].astype(dtype) * first_BTGV.reshape(v_BTGV.shape) + a[1].astype(dtype) * v_BTGV
            if self.embedding_lambdas is not None:
                own = shared_BTE if self.table is None else jnp.take(self.table[...], tokens_BT, axis=0).astype(dtype)
                assert own is not None
                b = self.embedding_lambdas[...].astype(dtype)
                v_BTGV = b[0] * own.reshape(v_BTGV.shape) + b[1] * v_BTGV
        return v_BTGV
