"""The training step: one jitted function of (parameters, optimizer state, batch, learning rate, key).

It is `jax.jit` over the split state of NNX modules, with donated buffers. Compiled programs are cached by everything
that shapes them, without the seed and the learning rate, so that a second seed of an arm compiles nothing.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import fields
from models import Transformer, axes, initial
from models.layers import hidden_share
from models.platform import current
from training.step import mesh as meshes
from training.step import optimizer as optimizers
from training.step.loss import block_of, loss_sum, loss_sum_of_blocks, token_losses

# tokens, targets int32 [B, T], weights float32 [B, T]; optionally positions, segments int32 [B, T]
Batch = Mapping[str, Any]
Params = Any
OptState = Any


@dataclass(frozen=True)
class Abstract:
    """A model without values: the NNX graph, and its parameters and optimizer state as shapes."""

    graphdef: Any
    params: Params
    opt_state: OptState


def abstract(config: ConfigDict, mesh: Mesh | None = None) -> Abstract:
    """Returns the shapes of a resolved config's model and optimizer, without allocating them.

    With a mesh they include each array's sharding.
    """
    graphdef, params = initial.abstract(config.model)
    opt_state = jax.eval_shape(_transform(config).init, params)
    rules = meshes.rules_of(config, mesh)
    return Abstract(graphdef, *(meshes.placed(rules, tree) for tree in (params, opt_state)))


@lru_cache(maxsize=16)
def _opt_state(text: str, share: float) -> Any:
    return jax.jit(optimizers.make(ConfigDict(json.loads(text)), share=share).init)


def _transform(
    config: ConfigDict, weight_decay: Array | None = None, learning_rate: Array | float = 0.0
) -> optax.GradientTransformation:
    return optimizers.make(config.optimizer, weight_decay, hidden_share(config.model), learning_rate)


def initial_opt_state(config: ConfigDict, params: Params, mesh: Mesh | None = None) -> OptState:
    """Returns the initial optimizer state of parameters; the program is cached by the optimizer's settings."""
    if mesh is not None:
        lies = jax.tree.map(lambda x: x.sharding, abstract(config, mesh).opt_state)
        return jax.jit(_transform(config).init, out_shardings=lies)(params)
    text = json.dumps(fields.to_dict(config)["optimizer"], sort_keys=True)
    return _opt_state(text, hidden_share(config.model))(params)


def batch_loss(config: ConfigDict, model: Transformer, batch: Batch, dropout_key: Array | None) -> tuple[Array, Array]:
    """Returns the weighted sum of a batch's token losses, with and without the z-loss (see `loss_sum`).

    Args:
        config: resolved.
        model: of that config.
        batch: see `Batch`.
        dropout_key: None: no dropout.
    """
    hidden = model.hidden(batch["tokens"], batch.get("positions"), batch.get("segments"), dropout_key=dropout_key)
    targets, weights, z_loss = batch["targets"], batch["weights"], config.optimizer.z_loss
    block = block_of(config.model, *batch["tokens"].shape)
    if not block:
        logits = model.logits(hidden)
        with jax.named_scope("loss"):
            return loss_sum(logits, targets, weights, z_loss)
    with jax.named_scope("logits"):
        table_DV, cap = model.output_parameter().T, config.model.logit_soft_cap
        hidden = model.before_logits(hidden)
        return loss_sum_of_blocks(hidden, table_DV, targets, weights, block=block, z_loss=z_loss, soft_cap=cap)


def step_function(config: ConfigDict, mesh: Mesh | None = None, weight_decay: Array | None = None) -> Any:
    """Returns `step(params, opt_state, batch, learning_rate, key) -> (params, opt_state, loss, grad_norm)`.

    The loss is the mean over the batch's weights, in nats per token, without the z-loss; the gradient's norm is that
    before clipping. Micro-batches are summed, weighted by tokens. A batch of only padding has loss 0 and gradient 0.
    On a mesh everything refers to the whole batch, over all devices. `weight_decay`: see `optimizer.make`;
    `learning_rate`:
    see `optimizer.rates`.
    """
    graphdef = abstract(config).graphdef
    micro_batches = config.data.micro_batches
    dropout, rules = config.model.dropout > 0, meshes.rules_of(config, mesh)

    def losses(params: Params, batch: Batch, key: Array) -> tuple[Array, Array]:
        return batch_loss(config, nnx.merge(graphdef, params), batch, key if dropout else None)

    gradient = jax.value_and_grad(losses, has_aux=True)

    def accumulated(params: Params, batch: Batch, key: Array) -> tuple[Array, Params]:
        if micro_batches == 1:
            (_, plain), grads = gradient(params, batch, key)
            return plain, grads
        parts = jax.tree.map(lambda x: x.reshape(micro_batches, -1, *x.shape[1:]), dict(batch))
        parts = {name: axes.constrain(x, None, "batch", "length") for name, x in parts.items()}

        def add(carry: tuple[Array, Params], part: tuple[Batch, Array]) -> tuple[tuple[Array, Params], None]:
            (_, plain), grads = gradient(params, *part)
            with jax.named_scope("micro_batches"):
                return jax.tree.map(jnp.add, carry, (plain, grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(add, zero, (parts, jax.random.split(key, micro_batches)))[0]

    def step(params: Params, opt_state: OptState, batch: Batch, learning_rate: Array, key: Array) -> Any:
        with jax.named_scope("loss"):
            total = jnp.maximum(jnp.sum(batch["weights"]), 1e-9)
        with jax.named_scope("optimizer"):
            params = optimizers.point(config.optimizer, params, opt_state)
        with axes.following(rules):
            plain, grads = accumulated(params, batch, key)
        with jax.named_scope("optimizer"):
            grads = jax.tree.map(lambda g: g / total, grads)
            norm = optimizers.global_norm(grads)
            transform = _transform(config, weight_decay, learning_rate)
            updates, opt_state = transform.update(grads, opt_state, params)
            params = optimizers.apply(config.optimizer, params, updates, opt_state, learning_rate)
        return params, opt_state, plain / total, norm

    return step


def shaping(config: ConfigDict) -> str:
    """Returns a key of everything in a config that shapes its compiled programs: its static fields, as JSON."""
    return json.dumps([fields.program_values(config), current()], sort_keys=True)


@lru_cache(maxsize=16)
def _jitted(key: str, mesh: Mesh | None) -> Any:
    # Only the fields of the key exist there: a program that reads another one fails instead of sharing a wrong result.
    config = fields.program_config(json.loads(key)[0])
    if mesh is None:
        return jax.jit(step_function(config), donate_argnums=(0, 1))
    shapes, rules = abstract(config, mesh), meshes.rules_of(config, mesh)
    lies = jax.tree.map(lambda x: x.sharding, (shapes.params, shapes.opt_state))
    assert rules is not None
    everywhere = meshes.whole(rules)
    return jax.jit(step_function(config, mesh), donate_argnums=(0, 1), out_shardings=(*lies, everywhere, everywhere))


def jitted(config: ConfigDict, mesh: Mesh | None = None) -> Any:
    """Returns the jitted step of a resolved config; equal programs share one function."""
    return _jitted(shaping(config), mesh)


_COMPILED: dict[tuple[str, Any, Mesh | None], Any] = {}


def batch_shapes(batch: Batch) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns a batch's shapes and types; for arrays over a mesh also their sharding."""

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
        return jax.ShapeDtypeStruct(np.shape(x), dtype, sharding=getattr(x, "sharding", None))

    return {name: shape(x) for name, x in sorted(batch.items())}


def arguments(config: ConfigDict, batch: Batch | None = None, mesh: Mesh | None = None) -> tuple[Any, ...]:
    """Returns the shapes of the arguments of a resolved config's training step; nothing is allocated.

    Args:
        config: resolved, `model.vocab_size` set.
        batch: an example, for its shapes; by default the main setting's tokens, targets and weights.
        mesh: for the shardings.
    """
    shapes, rules = abstract(config, mesh), meshes.rules_of(config, mesh)
    if batch is None:
        rows = (config.data.batch_size, config.data.length)
        lies = None if rules is None else rules.sharding(("batch", "length"), rows)
        whole, real = (jax.ShapeDtypeStruct(rows, dtype, sharding=lies) for dtype in (jnp.int32, jnp.float32))
        batch = {"tokens": whole, "targets": whole, "weights": real}
        if config.data.packing == "segments" and config.data.weights.text > 0:
            batch |= {"positions": whole, "segments": whole}
    else:
        batch = batch_shapes(batch)
    rate = jax.ShapeDtypeStruct(optimizers.rates_shape(config.optimizer), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return shapes.params, shapes.opt_state, batch, rate, key


def lower(config: ConfigDict, batch: Batch | None = None, mesh: Mesh | None = None) -> jax.stages.Lowered:
    """Lowers the training step of a resolved config for shapes alone (see `arguments`)."""
    return jitted(config, mesh).lower(*arguments(config, batch, mesh))


def compiled(
    config: ConfigDict, batch: Batch, mesh: Mesh | None = None, shaped: str | None = None
) -> tuple[Any, float]:
    """Returns (the compiled step for this batch's shapes, seconds to compile: 0 if it was cached).

    `shaped` is `shaping(config)`, if available: a loop that needs it at every step computes it once.
    """
    shapes = tuple((name, s.shape, str(s.dtype)) for name, s in batch_shapes(batch).items())
    key = (shaping(config) if shaped is None else shaped, shapes, mesh)
    if key in _COMPILED:
        return _COMPILED[key], 0.0
    start = time.perf_counter()
    _COMPILED[key] = lower(config, batch, mesh).compile()
    while len(_COMPILED) > 32:
        _COMPILED.pop(next(iter(_COMPILED)))
    return _COMPILED[key], time.perf_counter() - start


@lru_cache(maxsize=32)
def _loss_function(text: str, mesh: Mesh | None) -> Any:
    config = fields.program_config(json.loads(text))
    (graphdef, _), rules = initial.abstract(config.model), meshes.rules_of(config, mesh)

    def losses(params: Params, batch: Batch) -> Array:
        model = nnx.merge(graphdef, params)
        with axes.following(rules):
            logits = model(batch["tokens"], batch.get("positions"), batch.get("segments"))
            return token_losses(logits, batch["targets"])

    return jax.jit(losses, out_shardings=None if rules is None else meshes.whole(rules))


def loss_function(config: ConfigDict, mesh: Mesh | None = None) -> Any:
    """Returns the jitted `losses(params, batch) -> [B, T]` in nats, float32, without dropout; cached by model.

    On a mesh every process gets all of them.
    """
    return _loss_function(json.dumps({"model": fields.program_values(config)["model"]}, sort_keys=True), mesh)
