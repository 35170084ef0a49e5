"""Talking-heads attention (Shazeer et al., arXiv 2003.02436): heads mix their scores, and mix their weights."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.declared.parameter import Parameters
from models.layers import Initializer


class TalkingHeads(nnx.Module):
    """J = S P_l before the softmax and U = W P_w after it, over heads: sum over h of x_h P[h, j] for each head j.

    S are the scaled (and capped) scores q.k, W the softmax's weights of J with the positions' bias and the mask. The
    paper's numbers of heads h_k, h and h_v are one number here, H, and both matrices [H, H] begin as the identity, so
    that a model begins as without them. Computed in float32.
    """

    def __init__(self, initial: Initializer, declared: Parameters) -> None:
        self.scores = initial.parameter(declared["scores"])
        self.weights = initial.parameter(declared["weights"])

    def mix(self, scores_BHTS: Array) -> Array:
        """Returns mixed scores."""
        return _mixed(scores_BHTS, self.scores[...])

    def combine(self, weights_BHTS: Array) -> Array:
        """Returns mixed weights."""
        return _mixed(weights_BHTS, self.weights[...])


def _mixed(x_BHTS: Array, by_HH: Array) -> Array:
    with jax.named_scope("talking_heads"):
        return jnp.einsum("bhts,hj->bjts", x_BHTS, by_HH, preferred_element_type=x_BHTS.dtype)
