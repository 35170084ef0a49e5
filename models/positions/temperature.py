"""Query temperatures: factors on queries, never on keys, that sharpen attention as positions grow."""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules import positions as declared
from models.positions.scheme import Scheme


def log_n(p: Array, length: int, beta: float) -> Array:
    """Returns max(1, ln(p + 1) / ln(L0)) (Qwen 1, which applies it in use only; Su, kexue.fm/archives/8823).

    Within the original length it is 1, so training on that length is the same with it and without.
    """
    return jnp.maximum(1.0, jnp.log(p + 1) / math.log(length))


def llama4(p: Array, length: int, beta: float) -> Array:
    """Returns 1 + beta ln(1 + floor((p + 1) / L0)) (Llama 4, on its layers without RoPE; L0 = 8192, beta = 0.1)."""
    return 1 + beta * jnp.log1p(jnp.floor((p + 1) / length))


def ministral3(p: Array, length: int, beta: float) -> Array:
    """Returns 1 + beta ln(1 + floor(p / L0)) (Ministral 3, on all layers; L0 = 16384, beta = 0.1)."""
    return 1 + beta * jnp.log1p(jnp.floor(p / length))


# kind -> function (positions as float32, L0, beta) -> factor.
TEMPERATURES: dict[str, Callable[[Array, int, float], Array]] = {
    name: globals()[name] for name in declared.TEMPERATURES
}


@dataclasses.dataclass(frozen=True)
class Temperature:
    """A query's factor by its position p, counted from 0 in its own sequence; float32."""

    kind: str
    length: int  # L0
    beta: float
    nope_only: bool  # acts only in layers without positions

    def acts(self, scheme: Scheme) -> bool:
        """Returns whether queries of a layer with this scheme get a factor."""
        return not (self.nope_only and scheme.places)

    def factor(self, positions: Array) -> Array:
        """Returns float32 factors of the positions' shape."""
        return TEMPERATURES[self.kind](positions.astype(jnp.float32), self.length, self.beta)

    def __call__(self, q_BTHK: Array, positions: Array | None = None) -> Array:
        """Returns queries [B, T, H, K] times their factors, in their dtype; positions [B|1, T], None: 0 .. T - 1."""
        positions = jnp.arange(q_BTHK.shape[1])[None] if positions is None else positions
        wide = q_BTHK.astype(jnp.promote_types(q_BTHK.dtype, jnp.float32))
        return (wide * self.factor(positions)[:, :, None, None]).astype(q_BTHK.dtype)


def build(config: ConfigDict) -> Temperature | None:
    """Returns the temperature of a resolved config.model, None if there is none.

    `layers` auto is Llama 4's own choice, the layers without positions, for llama4, and all layers for the others.

    Raises:
        ConfigError: an unknown kind of temperature.
    """
    temperature = config.position.temperature
    if temperature.kind == "none":
        return None
    if temperature.kind not in TEMPERATURES:
        raise ConfigError(
            f"model.position.temperature.kind = {temperature.kind!r}: must be none or one of "
            f"{', '.join(TEMPERATURES)}{nearest(temperature.kind, TEMPERATURES)}"
        )
    nope_only = temperature.layers == "nope" or (temperature.layers == "auto" and temperature.kind == "llama4")
    return Temperature(temperature.kind, temperature.length, temperature.beta, nope_only)
