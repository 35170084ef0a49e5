"""Random keys from seeds of up to 63 bits."""

from collections.abc import Callable

import jax
from jax import Array
from ml_collections import ConfigDict


def root_key(seed: int) -> Array:
    """Returns the key of a seed; seeds with equal lower 32 bits still differ."""
    key = jax.random.key(seed & 0xFFFFFFFF)
    return jax.random.fold_in(key, seed >> 32) if seed >> 32 else key


def step_keys(config: ConfigDict) -> Callable[[int], Array]:
    """Returns key(update) of a run's steps; without dropout nothing is drawn from it, and all are the root's."""
    root = root_key(config.seed)
    if not config.model.dropout:
        return lambda update: root
    return lambda update: jax.random.fold_in(root, update)
