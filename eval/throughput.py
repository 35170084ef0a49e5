"""Tokens a second of a training step, prefill and decode; compilation apart, medians with quartiles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eval import programs
from eval.progress import Silent
from eval.timing import compile_timed, measure, summary
from models.kv_cache import KVCache
from training import optimizer as optimizers
from training import step as steps
from training.record import compute_dtype
from training.run import Run


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/throughput.json's content.

    Each figure is the median of `repeats` measurements after warm-up, `spread` its quartiles; the device is waited for
    before the clock stops. `decode` is greedy generation of `new_tokens` from a cache that holds a prompt of `length`
    tokens; the prompt's own time is `prefill`. `kernel` is the attention core in the program that ran, or several.
    """
    parts = {}
    for name, function in (("train", _train), ("prefill", _prefill), ("decode", _decode)):
        progress.say(f"throughput: {name}")
        parts[name] = function(run)
    device = jax.devices()[0]
    return {
        "device": {"kind": device.device_kind, "platform": device.platform, "count": 1},
        "dtype": compute_dtype(run.config),
        "attention_kernel": parts["train"]["kernel"],
        **parts,
        "settings": {"shape": programs.shape(run.config).settings},
    }


def _tokens(rows: int, length: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, (rows, length), dtype=np.int32)


def _train(run: Run) -> dict[str, Any]:
    config = programs.training_config(run.config)
    rows, length = config.data.batch_size, config.data.length
    tokens = _tokens(rows, length + 1, config.model.vocab_size)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": np.ones((rows, length), np.float32)}
    lowered = steps.lower(config, batch)
    compiled, compile_seconds = compile_timed(lowered)
    params = jax.tree.map(jnp.copy, run.params)  # the step donates them
    opt_state = jax.jit(optimizers.make(config.optimizer).init)(params)
    rate, key = np.float32(0.0), jax.random.key(0)

    def call(state: Any) -> Any:
        params, opt_state, *_ = compiled(*state, batch, rate, key)
        return params, opt_state

    seconds = measure(call, (params, opt_state), repeats=config.eval.throughput.repeats)
    shape = {"batch_size": rows, "length": length, "kernel": programs.kernels_in(lowered)}
    return summary(seconds, rows * length, compile_seconds, **shape)


def _prefill(run: Run) -> dict[str, Any]:
    config = run.config
    found = programs.shape(config)
    rows, length = found.batch_size, found.length
    tokens = _tokens(rows, length, config.model.vocab_size)
    lowered = programs.lower_prefill(config)
    compiled, compile_seconds = compile_timed(lowered)

    def call(cache: Any) -> Any:
        # The cache is donated and comes back full; emptied, the next prompt may have it.
        return dataclasses.replace(compiled(run.params, cache, tokens)[1], length=jnp.zeros((), jnp.int32))

    seconds = measure(call, KVCache.create(config.model, rows, length), repeats=config.eval.throughput.repeats)
    shape = {"batch_size": rows, "length": length, "kernel": programs.kernels_in(lowered)}
    return summary(seconds, rows * length, compile_seconds, **shape)


def _decode(run: Run) -> dict[str, Any]:
    config = run.config
    found = programs.shape(config)
    rows, new = found.decode_batch_size, found.new_tokens
    lowered = programs.lower_decode(config)
    compiled, compile_seconds = compile_timed(lowered)
    cache, tokens = programs.filled_cache(config), _tokens(rows, 1, config.model.vocab_size)[:, 0]
    seconds = measure(lambda _: compiled(run.params, cache, tokens), None, repeats=config.eval.throughput.repeats)
    shape = {"batch_size": rows, "length": found.prompt, "new_tokens": new, "kernel": programs.kernels_in(lowered)}
    return summary(seconds, rows * new, compile_seconds, **shape)
