"""Random keys from seeds of up to 63 bits."""

import jax
from jax import Array


def root_key(seed: int) -> Array:
    """Returns the key of a seed; seeds that agree in their lower 32 bits still differ."""
    key = jax.random.key(seed & 0xFFFFFFFF)
    return jax.random.fold_in(key, seed >> 32) if seed >> 32 else key
