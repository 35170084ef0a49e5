"""Arrays made longer."""

import jax.numpy as jnp
from jax import Array


def raised(x: Array, axis: int, length: int, value: float = 0) -> Array:
    """Returns x with an axis (from the end where it is negative) padded to `length` with a value."""
    axis %= x.ndim
    widths = [(0, length - x.shape[i] if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value) if length > x.shape[axis] else x
