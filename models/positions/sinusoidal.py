"""Sinusoidal positions added to the embedding (Vaswani et al., arXiv 1706.03762, section 3.5)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from models.positions.scheme import Scheme


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Scheme):
    """x + e(p), e(p)[2i] = sin(p / 10000^(2i/D)) and e(p)[2i + 1] = cos(p / 10000^(2i/D)): sin and cos alternate."""

    places: ClassVar[frozenset[str]] = frozenset({"embed"})

    def embed(self, x_BTD: Array, positions: Array | None = None) -> Array:
        """Returns x [B, T, D] plus the waves, computed in float32 and cast to x's dtype."""
        length, width = x_BTD.shape[-2:]
        positions = jnp.arange(length)[None] if positions is None else positions
        frequency = (10000.0 ** (-2.0 * np.arange((width + 1) // 2) / width)).astype(np.float32)
        angles = positions.astype(jnp.float32)[..., None] * frequency
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        waves = waves.reshape(*positions.shape, -1)[..., :width]
        return x_BTD + waves.astype(x_BTD.dtype)


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Sinusoidal:
    """Builds the scheme; nothing is read from `config`."""
    return Sinusoidal()
