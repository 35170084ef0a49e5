"""Sigmoid attention (Ramapuram et al., arXiv 2409.04431): each key's weight by itself, without a sum to 1."""

import jax
from jax import Array


def sigmoid(scores_BHTS: Array, bias: float) -> Array:
    """Returns sigmoid(s + b) of scores as the mask left them, so 0 of a hidden key.

    b = -ln(n), n the length trained on, unless the config sets it: n equal scores of 0 then weigh about 1 together, as
    softmax's do (section 3.1). No other key changes a key's weight.
    """
    return jax.nn.sigmoid(scores_BHTS + bias)
