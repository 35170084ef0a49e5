"""How cached numbers are stored: as they are, or in 8 bits with a float32 scale for each token and head.

    int8:  codes = x / max|x| * 127 rounded, scale = max|x| / 127
    fp8:   codes = float8_e4m3fn(x / scale), scale = max|x| / 448

max is over the K numbers of one token and head; x is read back as codes * scale. The scale has no floor: it is as
small as the numbers are, and 0 where they all are, so that zeros stay zeros. fp8 is emulated: its numbers are stored in
8 bits and computed with in the compute dtype.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

# storage -> (dtype of the codes, the code of the largest number). The 8 bits of a float are kept as a uint8: XLA on the
# CPU writes a float8 by way of a copy of the whole cache in float16, seven times as long.
CODES = {"int8": (jnp.int8, 127.0), "fp8": (jnp.uint8, 448.0)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantised:
    """codes * scales."""

    codes: Array  # [B, G, S, K]: int8, or uint8 that holds the bits of a float8_e4m3fn
    scales: Array  # float32 [B, G, S, 1]

    @property
    def numbers(self) -> Array:
        """The codes as numbers, int8 or float8_e4m3fn."""
        if self.codes.dtype == jnp.int8:
            return self.codes
        return jax.lax.bitcast_convert_type(self.codes, jnp.float8_e4m3fn)


# The numbers of one name in one layer's cache: [B, G, S, K] as they are, or quantised. All leaves have slots on axis 2.
Stored = Array | Quantised


def empty(shape: tuple[int, int, int, int], storage: str, dtype: DTypeLike) -> Stored:
    """Returns zeros [B, G, S, K]: in `dtype` for the storage auto, else quantised."""
    if storage == "auto":
        return jnp.zeros(shape, dtype)
    return Quantised(jnp.zeros(shape, CODES[storage][0]), jnp.zeros((*shape[:3], 1), jnp.float32))


def encode(x_BGSK: Array, like: Stored) -> Stored:
    """Returns numbers in the storage of `like`; in 8 bits they are off by half a step at most.

    int8 rounds ties towards zero. Half a step of int8 is scale / 2; of fp8, |x| / 16 or scale / 1024, the greater.
    """
    if not isinstance(like, Quantised):
        return x_BGSK.astype(like.dtype)
    x = x_BGSK.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    top = next(top for dtype, top in CODES.values() if like.codes.dtype == dtype)
    codes = x / jnp.where(largest > 0, largest, 1) * top
    if like.codes.dtype == jnp.int8:
        codes = (jnp.sign(codes) * jnp.ceil(jnp.abs(codes) - 0.5)).astype(jnp.int8)
    else:
        codes = jax.lax.bitcast_convert_type(codes.astype(jnp.float8_e4m3fn), jnp.uint8)
    return Quantised(codes, largest / top)


def decode(stored: Stored, dtype: DTypeLike) -> Array:
    """Returns the numbers [B, G, S, K] in `dtype`."""
    if isinstance(stored, Quantised):
        return (stored.numbers.astype(jnp.float32) * stored.scales).astype(dtype)
    return stored.astype(dtype)
