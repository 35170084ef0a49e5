"""p-RoPE: RoPE without its slowest frequencies (Barbero et al., arXiv 2410.06205; Gemma 4's "proportional" RoPE)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError
from models.positions import rope_scaling
from models.positions.rope import Rope, check_pairing


@dataclasses.dataclass(frozen=True)
class PRope(Rope):
    """RoPE over the whole head whose first `kept` frequencies theta^(-2i/K) turn and whose others are 0.

    Unlike partial rotary the exponent's denominator is head_dim and pairs span the head: dim i pairs with i + K/2
    whatever is kept. A scaling's factor on cos and sin multiplies the still pairs too.
    """

    kept: int  # floor(p K/2)

    def cos_sin(self, positions: Array, lengths: Array | None = None) -> tuple[Array, Array]:
        """Returns cos and sin [B|1, T, K/2] in float32, the scaling's factor included."""
        inv_freq, factor = self.scaling.frequencies(self.theta, self.rotary_dim, lengths)
        inv_freq = inv_freq * (np.arange(self.rotary_dim // 2) < self.kept)
        angles = positions.astype(jnp.float32)[..., None] * inv_freq
        return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> PRope:
    """Builds p-RoPE from a resolved config.model; p is `position.rope.fraction`.

    Raises:
        ConfigError: an odd head_dim, nothing kept, an unknown pairing or scaling.
    """
    rope = config.position.rope
    kept = int(rope.fraction * config.head_dim / 2)
    if config.head_dim % 2 or kept < 1:
        raise ConfigError(
            f"model.position.rope.fraction = {rope.fraction}: p-RoPE keeps floor(fraction * head_dim / 2) = {kept} "
            f"frequencies, and needs one at least and an even head_dim, not {config.head_dim}"
        )
    check_pairing(rope.pairing)
    return PRope(rope.theta, config.head_dim, rope.pairing, rope_scaling.from_config(rope.scaling), kept=kept)
