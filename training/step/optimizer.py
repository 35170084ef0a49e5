"""What all optimizers share: clipping, decoupled weight decay, and a learning rate that is an argument of the step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from ml_collections import ConfigDict

from models.metadata import each
from training.step import optimizers

Params = Any  # a pytree of float32 arrays


def decays(params: Params) -> Params:
    """Returns whether each parameter decays, as its declaration says: matrices do, norms, biases and sinks do not."""
    return each(params, lambda declared: declared.decay)


def groups(params: Params) -> Params:
    """Returns each parameter's optimizer group (`models/declared/parameter.py`), as `optax.multi_transform` takes."""
    return each(params, lambda declared: declared.group)


def _scaled(share: float) -> optax.GradientTransformation:
    """Returns muP's factor on the learning rate (2203.03466, table 8): of matrices whose inputs grow with width."""

    def update(updates: Params, _: Params | None = None) -> Params:
        return jax.tree.map(lambda u, group: share * u if group == "hidden" else u, updates, groups(updates))

    return optax.stateless(update)


def make(optimizer: ConfigDict, weight_decay: Array | None = None, share: float = 1.0) -> optax.GradientTransformation:
    """Returns the transformation before the learning rate: clip, the optimizer, decoupled decay (1711.05101).

    Args:
        optimizer: config.optimizer.
        weight_decay: takes the place of one that the config has and that is not 0.
        share: of the learning rate, for matrices whose inputs grow with width (muP). Decay is not multiplied by it, so
            that what it does to a matrix does not depend on width either.
    """
    parts = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
    chosen = optimizers.optimizer(optimizer.kind)
    parts.append(chosen.build({name: optimizer[name] for name in chosen.fields}))
    parts += [_scaled(share)] if share != 1 else []
    if optimizer.weight_decay:
        decay: Any = optimizer.weight_decay if weight_decay is None else weight_decay
        parts.append(optax.add_decayed_weights(decay, mask=decays))
    return optax.chain(*parts)


def apply(params: Params, updates: Params, learning_rate: Array) -> Params:
    """Returns params - learning_rate * updates."""
    return jax.tree.map(lambda p, u: p - jnp.asarray(learning_rate, p.dtype) * u, params, updates)


def global_norm(tree: Params) -> Array:
    """Returns the root of the sum of squares over all leaves, float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)))
