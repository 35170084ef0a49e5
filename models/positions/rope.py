"""Rotary positions (RoPE, Su et al., arXiv 2104.09864), whole or partial, in both pairings."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.rules.attention import turning_dim
from models.positions import rope_scaling
from models.positions.scheme import Scheme

PAIRINGS = ("half", "interleaved")


@dataclasses.dataclass(frozen=True)
class Rope(Scheme):
    """Rotates pair i of queries and keys by the angle p * w_i, w_i = theta^(-2i/r), so that q.k sees p_q - p_k alone.

    Only the first r dims turn; r is also the exponent's denominator, as in GPT-NeoX and Phi. Pairing `half` joins
    dim i with i + r/2 (Llama), `interleaved` 2i with 2i + 1 (GPT-J). A scaling changes the w_i and may multiply cos
    and sin by a factor. Angles, cos, sin and the turn are float32 whatever x's dtype: bfloat16 has no 257.
    """

    theta: float
    rotary_dim: int  # r
    pairing: str
    scaling: rope_scaling.Scaling

    places: ClassVar[frozenset[str]] = frozenset({"rotate"})

    @property
    def uses_lengths(self) -> bool:
        """Whether the scaling reads the sequence's length."""
        return self.scaling.uses_lengths

    @property
    def score_factor(self) -> float | Array:
        """The scaling's own factor on whole scores, as DeepSeek's attention has it (see `rope_scaling`)."""
        return self.scaling.score_factor

    def rotate(
        self, x_BTHK: Array, positions: Array | None = None, lengths: Array | None = None, *, keys: bool = False
    ) -> Array:
        """Returns x [B, T, H, K], queries or keys, rotated by their positions.

        Raises:
            ValueError: the scaling depends on the length and positions are given without lengths.
        """
        length = x_BTHK.shape[1]
        if self.uses_lengths and lengths is None:
            if positions is not None:
                raise ValueError(f"RoPE scaling {self.scaling.kind!r} needs the sequences' lengths")
            lengths = jnp.full((1, 1), length)
        positions = jnp.arange(length)[None] if positions is None else positions
        cos, sin = self.cos_sin(positions, lengths)
        return turn(x_BTHK, cos[:, :, None, :], sin[:, :, None, :], self.pairing)

    def cos_sin(self, positions: Array, lengths: Array | None = None) -> tuple[Array, Array]:
        """Returns cos and sin [B|1, T, r/2] in float32, the scaling's factor included."""
        inv_freq, factor = self.scaling.frequencies(self.theta, self.rotary_dim, lengths)
        angles = positions.astype(jnp.float32)[..., None] * inv_freq
        return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def turn(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    """Rotates the first 2 * cos.shape[-1] dims of x and leaves the rest.

    The gradient of x is rotated back, while JAX's own would sum padded slices; the angles have none, for they come
    from positions and nothing in them is learned.
    """
    return _turned(x, jax.lax.stop_gradient(cos), jax.lax.stop_gradient(sin), pairing)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _turned(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    r = 2 * cos.shape[-1]
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    rotation, rest = x[..., :r].astype(dtype), x[..., r:]
    if pairing == "half":
        first, second = rotation[..., : r // 2], rotation[..., r // 2 :]
        rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    else:
        first, second = rotation[..., 0::2], rotation[..., 1::2]
        rotated = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1).reshape(rotation.shape)
    rotated = rotated.astype(x.dtype)
    return jnp.concatenate([rotated, rest], axis=-1) if rest.shape[-1] else rotated


def _turned_forward(x: Array, cos: Array, sin: Array, pairing: str) -> tuple[Array, tuple[Array, Array]]:
    return _turned(x, cos, sin, pairing), (cos, sin)


def _turned_backward(pairing: str, saved: tuple[Array, Array], d_turned: Array) -> tuple[Array, None, None]:
    cos, sin = saved
    return _turned(d_turned, cos, -sin, pairing), None, None


_turned.defvjp(_turned_forward, _turned_backward)


def check_pairing(pairing: str) -> None:
    """Refuses an unknown pairing.

    Raises:
        ConfigError: it is none of PAIRINGS.
    """
    if pairing not in PAIRINGS:
        raise ConfigError(f"model.position.rope.pairing = {pairing!r}: must be {' or '.join(PAIRINGS)}")


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Rope:
    """Builds RoPE from a resolved config.model.

    Raises:
        ConfigError: an odd or empty rotary width, an unknown pairing or scaling.
    """
    rope = config.position.rope
    rotation = turning_dim(config)
    rotary_dim = int(rotation * rope.fraction)
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > rotation:
        raise ConfigError(
            f"model.position.rope.fraction = {rope.fraction}: of head_dim {rotation} it leaves the rotary width "
            f"{rotary_dim}, which must be even and in 2 .. head_dim"
        )
    check_pairing(rope.pairing)
    return Rope(rope.theta, rotary_dim, rope.pairing, rope_scaling.from_config(rope.scaling))
