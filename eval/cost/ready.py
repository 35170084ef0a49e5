"""The measured programs with their arguments: a train step, a forward pass, prefill, decode."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from eval.cost import programs
from models.decoding.kv_cache import KVCache
from training.run_directory.run import Run
from training.step import optimizer
from training.step import train_step as steps


@dataclass(frozen=True)
class Ready:
    """One program at one shape.

    Attributes:
        lowered: to compile.
        start: makes the first state for `call`; nothing of the run itself is donated.
        call: (compiled, state) -> the next state, which includes the program's outputs.
        tokens: processed by one call.
        shape: batch_size, length, ..., and the attention kernel.
    """

    lowered: jax.stages.Lowered
    start: Callable[[], Any]
    call: Callable[[Any, Any], Any]
    tokens: int
    shape: dict[str, Any]


def train(run: Run) -> Ready:
    """Returns the training step, at learning rate 0."""
    config = programs.training_config(run.config)
    batch = _batch(config)
    rate, key = optimizer.rates(config.optimizer, 0.0), jax.random.key(0)

    def start() -> Any:
        params = jax.tree.map(jnp.copy, run.params)  # the step donates them
        return params, steps.initial_opt_state(config, params)

    def call(compiled: Any, state: Any) -> Any:
        params, opt_state, *_ = compiled(*state, batch, rate, key)
        return params, opt_state

    return _ready(steps.lower(config, batch), start, call, config)


def forward(run: Run) -> Ready:
    """Returns the losses of all tokens of a training batch, without gradients."""
    config = programs.training_config(run.config)
    batch = {name: x for name, x in _batch(config).items() if name != "weights"}
    shapes = steps.batch_shapes(batch)
    lowered = steps.loss_function(config).lower(steps.abstract(config).params, shapes)
    return _ready(lowered, lambda: None, lambda compiled, _: compiled(run.params, batch), config)


def prefill(run: Run) -> Ready:
    """Returns prefill of a whole batch into an empty cache."""
    config = run.config
    result = programs.shape(config)
    rows, length = result.batch_size, result.length
    tokens = _tokens(rows, length, config.model.vocab_size)

    def call(compiled: Any, cache: Any) -> Any:
        # The cache is donated and comes back full; it is emptied for the next prompt.
        return dataclasses.replace(compiled(run.params, cache, tokens)[1], length=jnp.zeros((), jnp.int32))

    lowered = programs.lower_prefill(config)
    shape = {"batch_size": rows, "length": length, "kernel": programs.kernels_in(lowered)}
    return Ready(lowered, lambda: KVCache.create(config.model, rows, length), call, rows * length, shape)


def decode(run: Run) -> Ready:
    """Returns greedy decoding of the new tokens from a cache that contains the prompt."""
    config = run.config
    result = programs.shape(config)
    rows, new = result.decode_batch_size, result.new_tokens
    tokens = _tokens(rows, 1, config.model.vocab_size)[:, 0]

    def call(compiled: Any, cache: Any) -> Any:
        # As in prefill: the new tokens' slots are free again.
        return dataclasses.replace(compiled(run.params, cache, tokens)[1], length=jnp.int32(result.prompt))

    lowered = programs.lower_decode(config)
    shape = {"batch_size": rows, "length": result.prompt, "new_tokens": new, "kernel": programs.kernels_in(lowered)}
    return Ready(lowered, lambda: programs.filled_cache(config), call, rows * new, shape)


PROGRAMS: dict[str, Callable[[Run], Ready]] = {"train": train, "forward": forward, "prefill": prefill, "decode": decode}


def at(run: Run, **settings: int) -> Run:
    """Returns the run with fields of config.eval.throughput changed."""
    config = run.config.copy_and_resolve_references()
    for name, value in settings.items():
        config.eval.throughput[name] = value
    return dataclasses.replace(run, config=config)


def _ready(lowered: jax.stages.Lowered, start: Any, call: Any, config: ConfigDict) -> Ready:
    rows, length = config.data.batch_size, config.data.length
    shape = {"batch_size": rows, "length": length, "kernel": programs.kernels_in(lowered)}
    return Ready(lowered, start, call, rows * length, shape)


def _batch(config: ConfigDict) -> dict[str, np.ndarray]:
    rows, length = config.data.batch_size, config.data.length
    tokens = _tokens(rows, length + 1, config.model.vocab_size)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": np.ones((rows, length), np.float32)}


def _tokens(rows: int, length: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, (rows, length), dtype=np.int32)
