"""The three programs whose cost is measured, at the shapes of an evaluation: train step, prefill, decode."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs import validate
from configs.errors import UserError
from models.declared import positions
from models.decoding import decode
from models.decoding.kv_cache import KVCache
from models.kernels import KERNELS
from training.run_directory.record import compute_dtype
from training.step import train_step as steps


@dataclass(frozen=True)
class Shape:
    """Rows and lengths: of the train step and prefill (batch_size x length), of decode (prompt, then new_tokens)."""

    batch_size: int
    length: int
    decode_batch_size: int
    prompt: int
    new_tokens: int

    @property
    def capacity(self) -> int:
        """Slots of decode's KV cache: prompt and new tokens."""
        return self.prompt + self.new_tokens

    @property
    def settings(self) -> dict[str, int]:
        """The shapes for the JSON file."""
        return {**vars(self), "capacity": self.capacity}


def shape(config: ConfigDict) -> Shape:
    """Returns the shapes of `eval.throughput`, with the training batch where they are unset.

    A learned table limits decode: the prompt is shortened so that the new tokens fit.

    Raises:
      UserError: a learned table has too few positions.
    """
    expected = config.eval.throughput
    length = prompt = expected.length or config.data.length
    if (result := positions.reach(config.model)) is not None:
        table, reason = result
        for name, tokens in (("length", length), ("new_tokens", expected.new_tokens + 1)):
            if tokens > table:
                raise UserError(f"eval.throughput.{name} = {expected[name]}: {reason}")
        prompt = min(length, table - expected.new_tokens)
    batch_size = expected.batch_size or config.data.batch_size
    return Shape(batch_size, length, expected.decode_batch_size, prompt, expected.new_tokens)


def element_bytes(config: ConfigDict) -> int:
    """Returns the bytes per number of the KV cache."""
    return jnp.dtype(compute_dtype(config)).itemsize


def training_config(config: ConfigDict) -> ConfigDict:
    """Returns the config with the requested shapes, for the training step."""
    result = shape(config)
    changed = validate.from_dict(validate.to_dict(config))
    changed.data.batch_size, changed.data.length = result.batch_size, result.length
    if changed.data.batch_size % changed.data.micro_batches:
        changed.data.micro_batches = 1
    return changed


def lower_train_step(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers the training step."""
    return steps.lower(training_config(config))


def lower_prefill(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers prefill of a whole batch into an empty cache."""
    result = shape(config)
    abstract = steps.abstract(config)
    cache = jax.eval_shape(lambda: KVCache.create(config.model, result.batch_size, result.length))
    tokens = jax.ShapeDtypeStruct((result.batch_size, result.length), jnp.int32)
    return decode.prefill.lower(abstract.graphdef, abstract.params, cache, tokens)


def filled_cache(config: ConfigDict) -> KVCache:
    """Returns decode's cache with the prompt's slots filled; keys and values are zeros, which cost the same."""
    result = shape(config)
    cache = KVCache.create(config.model, result.decode_batch_size, result.capacity)
    return cache.place(jnp.zeros((result.decode_batch_size, result.prompt), jnp.int32)).cache


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def decode_steps(graphdef: Any, new_tokens: int, params: Any, cache: KVCache, tokens_B: Array) -> tuple[Array, KVCache]:
    """Returns int32 [B, new_tokens], greedy steps as in `decode.generate`, and the cache with these tokens.

    Args:
      graphdef: of a Transformer.
      new_tokens: number of steps.
      params: its parameters.
      cache: has a prompt, with room for the steps; it is donated.
      tokens_B: the last token of each row.
    """
    model = nnx.merge(graphdef, decode.narrowed(params, graphdef))
    layers = model.layers()

    def advance(carry: tuple[Array, Array, KVCache], _: None) -> tuple[tuple[Array, Array, KVCache], Array]:
        token, at, cache = carry
        hidden, cache = model.hidden(token[:, None], at[:, None], cache=cache, layers=layers)
        logits = model.logits(hidden[:, 0])
        with jax.named_scope("sampling"):
            token, at = jnp.argmax(logits, axis=-1).astype(jnp.int32), at + 1
        return (token, at, cache), token

    at = jnp.broadcast_to(cache.length, tokens_B.shape)
    (_, _, cache), new = jax.lax.scan(advance, (tokens_B, at, cache), None, length=new_tokens)
    return new.T, cache


def lower_decode(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers the decoding of all new tokens with a cache that contains the prompt."""
    result = shape(config)
    abstract = steps.abstract(config)
    cache = jax.eval_shape(lambda: filled_cache(config))
    tokens = jax.ShapeDtypeStruct((result.decode_batch_size,), jnp.int32)
    return decode_steps.lower(abstract.graphdef, result.new_tokens, abstract.params, cache, tokens)


LOWERED: dict[str, Callable[[ConfigDict], Any]] = {
    "train_step": lower_train_step,
    "prefill": lower_prefill,
    "decode": lower_decode,
}


def kernels_in(lowered: jax.stages.Lowered) -> str:
    """Returns the attention kernels of a program, by the scopes `attend` runs them in, joined by "+"."""
    result = set(re.findall(rf"attention_({'|'.join(KERNELS)})\b", lowered.as_text(debug_info=True)))
    return "+".join(name for name in KERNELS if name in result)


def analysis(compiled: Any) -> dict[str, int] | None:
    """Returns XLA's account of a compiled program in bytes, None if the platform has none."""
    result = compiled.memory_analysis()
    if result is None:
        return None
    argument, output = result.argument_size_in_bytes, result.output_size_in_bytes
    temp, alias = result.temp_size_in_bytes, result.alias_size_in_bytes
    peak = argument + output + temp - alias
    return {"argument": argument, "output": output, "temp": temp, "alias": alias, "peak": peak}
