"""KERPLE: learned kernels of distance, logarithmic or a power (Chi et al., arXiv 2205.09921)."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from models.positions.head_bias import HeadBias, Scalars
from models.positions.layered import parameters
from models.positions.scheme import Scheme

# The authors' code keeps both parameters at or above this (the paper: above 0).
LEAST = 0.01

# kind -> kernel of (r1 [], r2 [], distance [...]).
KERNELS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "kerple_log": lambda r1, r2, distance: -r1 * jnp.log1p(r2 * distance),
    # 0 ** r2 is 0, and its logarithm would poison gradients.
    "kerple_power": lambda r1, r2, distance: (
        -r1 * jnp.where(distance > 0, jnp.exp(r2 * jnp.log(jnp.maximum(distance, 1))), 0)
    ),
}
# kind -> the most r2 may be.
MOST: dict[str, float] = {"kerple_log": float("inf"), "kerple_power": 2.0}


class Kerple(Scheme, nnx.Module):
    """Adds -r1 ln(1 + r2 |i - j|) (`kerple_log`) or -r1 |i - j|^r2, r2 <= 2 (`kerple_power`) to the scores.

    r1 and r2 are learned for each head of each layer, drawn uniformly below (2, 1) and (1, 2) as in the authors' code.
    That code writes clipped values back into the parameters at each forward pass, so that they never leave their
    bounds; here the parameter is clipped where it is used, and its gradient is dropped only where it would push the
    parameter further out. The paper's third variant, a weighting of the scores by the kernel, is not here.
    """

    places: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, parameters: dict[str, nnx.Param], *, kind: str) -> None:
        self.kind = kind
        self.bias_r1, self.bias_r2 = parameters["bias_r1"], parameters["bias_r2"]

    def bias(self) -> HeadBias:
        """Returns the function of query positions [B|1, T] and key positions [B|1, S] that is added: [B|1, H, T, S]."""
        r1_H = within(self.bias_r1[...], LEAST, float("inf"))
        r2_H = within(self.bias_r2[...], LEAST, MOST[self.kind])

        def of_head(scalars: Scalars, q: Array, k: Array) -> Array:
            distance = jnp.abs(q - k).astype(jnp.float32)
            return KERNELS[self.kind](scalars["r1"], scalars["r2"], distance)

        return HeadBias(of_head, {"r1": r1_H, "r2": r2_H})


def within(x: Array, low: float, high: float) -> Array:
    """Returns x clipped to [low, high]; where it is clipped, only gradients whose descent leads back pass."""
    return _projected(x, low, high)


@jax.custom_vjp
def _projected(x: Array, low: float, high: float) -> Array:
    return jnp.clip(x, low, high)


def _forward(x: Array, low: float, high: float) -> tuple[Array, tuple[Array, float, float]]:
    return jnp.clip(x, low, high), (x, low, high)


def _backward(saved: tuple[Array, float, float], gradient: Array) -> tuple[Array, None, None]:
    x, low, high = saved
    outward = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
    return jnp.where(outward, 0, gradient), None, None


_projected.defvjp(_forward, _backward)


def build_log(config: ConfigDict, rngs: nnx.Rngs | None) -> Kerple:
    """Builds the logarithmic kernels for config.model's heads and those of its layers that have them."""
    return Kerple(parameters(config, "kerple_log", rngs), kind="kerple_log")


def build_power(config: ConfigDict, rngs: nnx.Rngs | None) -> Kerple:
    """Builds the power kernels for config.model's heads and those of its layers that have them."""
    return Kerple(parameters(config, "kerple_power", rngs), kind="kerple_power")
