"""xPos: RoPE whose scores also fade with distance (Sun et al., arXiv 2212.10554)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.rules.positions import XPOS_REACH
from models.positions import rope
from models.positions.scheme import Scheme

GAMMA = 0.4


@dataclasses.dataclass(frozen=True)
class XPos(Scheme):
    """RoPE with pair i of queries times zeta_i^(m/base) and of keys times zeta_i^(-n/base).

    zeta_i = (2i/r + 0.4)/1.4, base = 512 and m, n the positions, so q.k of pair i fades as zeta_i^((m - n)/base): the
    fastest pair most. Causal attention only, for it grows the other way. The authors' code centres positions on the
    sequence, which changes each factor but not their product; here they count from 0, so that cached keys stay as
    they are, and positions above 32 bases are refused, where float32 would not hold the factors. The authors join
    dims 2i and 2i + 1; here `rope.pairing` says.
    """

    rope: rope.Rope
    base: float

    places: ClassVar[frozenset[str]] = frozenset({"rotate"})

    def check(self, length: int) -> None:
        """Refuses lengths whose factors float32 does not hold.

        Raises:
            ConfigError: `length` is above 32 bases.
        """
        most = int(XPOS_REACH * self.base)
        if length > most:
            raise ConfigError(
                f"length {length}: xPos reaches {most} positions in float32, {XPOS_REACH} times "
                "model.position.xpos.base"
            )

    def rotate(
        self, x_BTHK: Array, positions: Array | None = None, lengths: Array | None = None, *, keys: bool = False
    ) -> Array:
        """Returns queries, or keys where `keys` says so, [B, T, H, K], rotated and stretched by their positions.

        Raises:
            ConfigError: positions None and more than are allowed (see `check`).
        """
        if positions is None:
            self.check(x_BTHK.shape[1])
            positions = jnp.arange(x_BTHK.shape[1])[None]
        cos, sin = self.rope.cos_sin(positions)
        zeta = (np.arange(0, self.rope.rotary_dim, 2) / self.rope.rotary_dim + GAMMA) / (1 + GAMMA)
        exponent = positions.astype(jnp.float32)[..., None] * (np.log(zeta) / self.base).astype(np.float32)
        stretch = jnp.exp(-exponent if keys else exponent)
        return rope.turn(x_BTHK, (cos * stretch)[:, :, None], (sin * stretch)[:, :, None], self.rope.pairing)


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> XPos:
    """Builds xPos from config.model: `position.rope` for the turning, `position.xpos` for the stretching."""
    return XPos(rope.build(config, rngs), config.position.xpos.base)
