"""Tokens a second of a training step, prefill and decode; compilation apart, medians with quartiles."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from eval import programs
from eval.progress import Silent
from eval.timing import measure, summary
from models import decode, kernels
from models.kv_cache import KVCache
from training import optimizer as optimizers
from training import step as steps
from training.record import compute_dtype
from training.run import Run


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/throughput.json's content.

    Each figure is the median of `repeats` measurements after warm-up, `spread` its quartiles; the device is waited for
    before the clock stops. `decode` is greedy generation of `new_tokens` after a prompt, less the time of the prompt
    and first token. `kernel` is the attention core that ran.
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
        "settings": programs.shape(run.config).settings,
    }


def _tokens(rows: int, length: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, (rows, length), dtype=np.int32)


def _kernel(run: Run, length: int) -> str:
    platform = jax.devices()[0].platform
    return kernels.kernel_for(run.config.model, length=length, platform=platform, packed=False)


def _train(run: Run) -> dict[str, Any]:
    config = programs.training_config(run.config)
    rows, length = config.data.batch_size, config.data.length
    tokens = _tokens(rows, length + 1, config.model.vocab_size)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": np.ones((rows, length), np.float32)}
    start = time.perf_counter()
    compiled = steps.lower(config, batch).compile()
    compile_seconds = time.perf_counter() - start
    params = jax.tree.map(jnp.copy, run.params)  # the step donates them
    opt_state = jax.jit(optimizers.make(config.optimizer).init)(params)
    rate, key = np.float32(0.0), jax.random.key(0)

    def call(state: Any) -> Any:
        return compiled(state[0], state[1], batch, rate, key)

    seconds = measure(call, (params, opt_state), repeats=config.eval.throughput.repeats)
    return summary(seconds, rows * length, compile_seconds, batch_size=rows, length=length, kernel=_kernel(run, length))


def _prefill(run: Run) -> dict[str, Any]:
    config = run.config
    found = programs.shape(config)
    rows, length = found.batch_size, min(found.length, programs.prompt_length(config, found) + found.new_tokens)
    tokens = _tokens(rows, length, config.model.vocab_size)
    graph = nnx.split(nnx.merge(run.graphdef, run.params))[0]
    start = time.perf_counter()
    cache = KVCache.create(config.model, rows, length)
    jax.block_until_ready(decode.prefill(graph, run.params, cache, tokens))
    compile_seconds = time.perf_counter() - start

    def call(state: Any) -> Any:
        # The cache is donated, so each call gets a new one, as a real prompt does.
        return decode.prefill(graph, run.params, KVCache.create(config.model, rows, length), tokens)

    seconds = measure(call, None, repeats=config.eval.throughput.repeats)
    shape = {"batch_size": rows, "length": length, "kernel": _kernel(run, length)}
    return summary(seconds, rows * length, max(0.0, compile_seconds - float(np.median(seconds))), **shape)


def _decode(run: Run) -> dict[str, Any]:
    config = run.config
    found = programs.shape(config)
    rows, length, new = found.decode_batch_size, programs.prompt_length(config, found), found.new_tokens
    prompts = _tokens(rows, length, config.model.vocab_size)

    def timed(count: int) -> tuple[np.ndarray, float]:
        def call(_: Any) -> Any:
            return decode.generate(run.graphdef, run.params, prompts, max_new=count)

        start = time.perf_counter()
        jax.block_until_ready(call(None))
        first = time.perf_counter() - start
        seconds = measure(call, None, repeats=config.eval.throughput.repeats)
        return seconds, max(0.0, first - float(np.median(seconds)))

    prompt, prompt_compile = timed(1)
    whole, compile_seconds = timed(new + 1)
    seconds = np.maximum(whole - np.median(prompt), 1e-9)
    shape = {"batch_size": rows, "length": length, "new_tokens": new, "kernel": "reference"}
    return summary(seconds, rows * new, prompt_compile + compile_seconds, **shape)
