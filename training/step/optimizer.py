"""Common to all optimizers: clipping, decoupled weight decay, and the learning rate as an argument of the step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax import Array
from ml_collections import ConfigDict

from models.declared.parameter import Parameter
from models.metadata import each
from training.step import optimizers

Params = Any  # a pytree of float32 arrays


def decays(params: Params) -> Params:
    """Returns whether each parameter decays, by its declaration: matrices do, norms, biases and sinks do not."""
    return each(params, lambda declared: declared.decay)


def groups(params: Params) -> Params:
    """Returns each parameter's optimizer group (`models/declared/parameter.py`), for `optax.multi_transform`."""
    return each(params, lambda declared: declared.group)


def _scaled(share: float, own: Callable[[Parameter], bool] | None) -> optax.GradientTransformation:
    """Returns muP's factor on the learning rate (2203.03466, table 8) for matrices whose inputs grow with width.

    Parameters with a separate learning rate are unchanged: the size of Muon's update, unlike Adam's, does not depend on
    width.
    """

    def reached(declared: Parameter) -> bool:
        return declared.group == "hidden" and not (own and own(declared))

    def update(updates: Params, _: Params | None = None) -> Params:
        return jax.tree.map(lambda u, scaled: share * u if scaled else u, updates, each(updates, reached))

    return optax.stateless(update)


def make(
    optimizer: ConfigDict, weight_decay: Array | None = None, share: float = 1.0, learning_rate: Array | float = 0.0
) -> optax.GradientTransformation:
    """Returns the transformation before the learning rate: clip, the optimizer, decoupled decay (1711.05101).

    Args:
        optimizer: config.optimizer.
        weight_decay: replaces the config's, if that is not 0.
        share: of the learning rate, for matrices whose inputs grow with width (muP). Decay is not multiplied by it, so
            that its effect on a matrix does not depend on width either.
        learning_rate: of this update. An optimizer that averages parameters weights them by it, and its updates are
            those of the parameters themselves; all others ignore it.
    """
    clip = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
    chosen, values = optimizers.optimizer(optimizer.kind), optimizers.values(optimizer)
    parts = [chosen.build(values)]
    parts += [_scaled(share, chosen.own_rate)] if share != 1 else []
    if optimizer.weight_decay:
        decay: Any = optimizer.weight_decay if weight_decay is None else weight_decay
        parts.append(optax.add_decayed_weights(decay, mask=decays))
    if chosen.averages:
        moved = optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))
        parts = [optax.contrib.schedule_free(moved, learning_rate, chosen.averages(values))]
    return optax.chain(*clip, *parts)


def rates(optimizer: ConfigDict, learning_rate: float) -> np.ndarray:
    """Returns the learning rate of an update in the form of the step's argument.

    float32 []; or [2], the second for the parameters with a separate rate, which follows the same schedule.

    Args:
        optimizer: config.optimizer.
        learning_rate: of the update: `optimizer.learning_rate` times the schedule.
    """
    chosen = optimizers.optimizer(optimizer.kind)
    if chosen.own_rate is None:
        return np.asarray(learning_rate, np.float32)
    own = optimizer[chosen.name].learning_rate * (learning_rate / optimizer.learning_rate)
    return np.asarray([learning_rate, own], np.float32)


def rates_shape(optimizer: ConfigDict) -> tuple[int, ...]:
    """Returns the shape of `rates`."""
    return () if optimizers.optimizer(optimizer.kind).own_rate is None else (2,)


def point(optimizer: ConfigDict, params: Params, opt_state: Any) -> Params:
    """Returns the parameters at which an update takes its gradients: the run's, except for averaged ones."""
    chosen = optimizers.optimizer(optimizer.kind)
    if not chosen.averages:
        return params
    beta = chosen.averages(optimizers.values(optimizer))
    return jax.tree.map(lambda x, z: beta * x + (1 - beta) * z, params, opt_state[-1].z)


def apply(optimizer: ConfigDict, params: Params, updates: Params, opt_state: Any, learning_rate: Array) -> Params:
    """Returns the parameters after an update: params - learning_rate * updates.

    Args:
        optimizer: config.optimizer.
        params: those at which the gradients were taken (`point`).
        updates: of the transformation.
        opt_state: after the update.
        learning_rate: see `rates`.
    """
    chosen = optimizers.optimizer(optimizer.kind)
    if chosen.averages:
        return optax.contrib.schedule_free_eval_params(opt_state[-1], optax.apply_updates(params, updates))
    if chosen.own_rate is None:
        return jax.tree.map(lambda p, u: p - jnp.asarray(learning_rate, p.dtype) * u, params, updates)
    own = each(params, chosen.own_rate)
    return jax.tree.map(lambda p, u, second: p - learning_rate[int(second)] * u, params, updates, own)


def global_norm(tree: Params) -> Array:
    """Returns the root of the sum of squares over all leaves, float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)))
