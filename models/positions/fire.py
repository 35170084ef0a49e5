"""FIRE: a small learned function of interpolated distance (Li et al., arXiv 2310.04418)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from ml_collections import ConfigDict

from models.positions.head_bias import HeadBias, Scalars
from models.positions.layered import parameters
from models.positions.scheme import Scheme

# Keeps the quotient finite (the authors' code).
EPS = 1e-6


class Fire(Scheme, nnx.Module):
    """Adds f(psi(i - j) / psi(max(i, L))) to the scores, psi(x) = ln(c x + 1), f an MLP from 1 to H with ReLU.

    c, L and f are learned, for each layer apart (the paper's FIRE; its variant FIRE-S shares them). i and j count from
    0. As in the authors' code c and L are taken by absolute value, where the paper asks for c, L > 0; L is its first
    value times a learned multiplier; and 1e-6 is added to the denominator. f's weights start as all matrices here do
    (`init`, `init_std`; fan-in 1 for its hidden layer, biases too), not as PyTorch's linear layers.
    The quotient reads i, so this bias depends on more than the distance.
    """

    places: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, parameters: dict[str, nnx.Param], *, threshold: float) -> None:
        self.threshold = threshold
        self.hidden, self.hidden_bias = parameters["hidden"], parameters["hidden_bias"]
        self.out, self.out_bias = parameters["out"], parameters["out_bias"]
        self.distance_scale, self.threshold_scale = parameters["distance_scale"], parameters["threshold_scale"]

    def bias(self) -> HeadBias:
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

        def quotient(scalars: Scalars, q: Array, k: Array) -> Array:
            distance = jnp.abs(q - k).astype(jnp.float32)
            furthest = jnp.maximum(q.astype(jnp.float32), scalars["threshold"])
            c = scalars["c"]
            return jnp.log1p(c * distance) / (jnp.log1p(c * furthest) + EPS)

        def unit(row: Scalars, x: Array) -> Array:
            before = x * row["hidden"] + row["hidden_bias"]
            return row["out"] * jnp.where(before > 0, before, 0.0)

        # One more unit that is always 1 carries the output's bias.
        H = out_bias_H.shape[0]
        by_unit = {
            "hidden": jnp.append(hidden_F, 0.0),
            "hidden_bias": jnp.append(hidden_bias_F, 1.0),
        }
        rows = {name: jnp.broadcast_to(x[:, None], (x.shape[0], H)) for name, x in by_unit.items()}
        rows["out"] = jnp.concatenate([out_FH, out_bias_H[None]])
        scalars = {"c": jnp.broadcast_to(c, (H,)), "threshold": jnp.broadcast_to(threshold, (H,))}
        return HeadBias(quotient, scalars, rows, unit, whole=added)


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Fire:
    """Builds FIRE for config.model's heads and those of its layers that have it."""
    return Fire(parameters(config, "fire", rngs), threshold=config.position.fire.threshold)
