"""FIRE: a small learned function of interpolated distance (Li et al., arXiv 2310.04418)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from ml_collections import ConfigDict

from models.layers import Initializer, parameter
from models.positions.layered import initializer
from models.positions.scheme import BiasFunction, Scheme

# Keeps the quotient finite (the authors' code).
EPS = 1e-6


class Fire(Scheme, nnx.Module):
    """Adds f(psi(i - j) / psi(max(i, L))) to the scores, psi(x) = ln(c x + 1), f an MLP from 1 to H with ReLU.

    c, L and f are learned, for each layer apart (the paper's FIRE; its variant FIRE-S shares them). i and j count from
    0. As in the authors' code c and L are taken by absolute value, where the paper asks for c, L > 0; L is its first
    value times a learned multiplier; and 1e-6 is added to the denominator. f's weights start as all matrices here do
    (`init`, `init_std`; fan-in 1 for its hidden layer, biases drawn alike), not as PyTorch's linear layers.
    The quotient reads i, so this bias depends on more than the distance.
    """

    places: ClassVar[frozenset[str]] = frozenset({"bias"})
    layered: ClassVar[bool] = True

    def __init__(self, initial: Initializer, num_heads: int, *, hidden: int, c: float, threshold: float) -> None:
        self.threshold = threshold

        def matrix(name: str, shape: tuple[int, ...], fan_in: int) -> nnx.Param:
            return parameter(initial.matrix(f"fire.{name}", shape, fan_in=fan_in, stacked=True))

        self.hidden = matrix("hidden", (hidden,), 1)
        self.hidden_bias = matrix("hidden_bias", (hidden,), 1)
        self.out = matrix("out", (hidden, num_heads), hidden)
        self.out_bias = parameter(initial.constant(0.0, num_heads, stacked=True))
        # Named so that they do not decay.
        self.distance_scale = parameter(initial.constant(c, 1, stacked=True))
        self.threshold_scale = parameter(initial.constant(1.0, 1, stacked=True))

    def bias(self) -> BiasFunction:
        """Returns the function of query positions [B|1, T] and key positions [B|1, S] that is added: [B|1, H, T, S]."""
        hidden_F, hidden_bias_F = self.hidden[...], self.hidden_bias[...]
        out_FH, out_bias_H = self.out[...], self.out_bias[...]
        c = jnp.abs(self.distance_scale[...])
        threshold = jnp.abs(self.threshold * self.threshold_scale[...])

        def added(q_positions: Array, kv_positions: Array) -> Array:
            distance = jnp.abs(q_positions[:, :, None] - kv_positions[:, None, :]).astype(jnp.float32)
            furthest = jnp.maximum(q_positions.astype(jnp.float32), threshold)[:, :, None]
            x = jnp.log1p(c * distance) / (jnp.log1p(c * furthest) + EPS)
            hidden = jax.nn.relu(x[..., None] * hidden_F + hidden_bias_F)
            out = jnp.einsum("btsf,fh->bhts", hidden, out_FH, precision=lax.Precision.HIGHEST)
            return out + out_bias_H[:, None, None]

        return added


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Fire:
    """Builds FIRE for config.model's heads and those of its layers that have it."""
    fire = config.position.fire
    initial = initializer(config, "fire", rngs)
    return Fire(initial, config.num_heads, hidden=fire.hidden, c=fire.c, threshold=fire.threshold)
