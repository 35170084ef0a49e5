"""The three programs whose cost is asked for, at the shapes an evaluation is set to: train step, prefill, decode."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from configs import validate
from configs.errors import UserError
from eval.variants import kinds
from models import decode
from models.kernels import KERNELS
from models.kv_cache import KVCache
from training import step as steps
from training.record import compute_dtype


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
        """What a JSON file says of it."""
        return {**vars(self), "capacity": self.capacity}


def shape(config: ConfigDict) -> Shape:
    """Returns the shapes that `eval.throughput` sets, with the training batch where it leaves them open.

    A learned table bounds decode: the prompt is shortened so that the new tokens fit.

    Raises:
      UserError: a learned table does not have so many positions.
    """
    wanted = config.eval.throughput
    length = prompt = wanted.length or config.data.length
    if "learned" in kinds(config.model):
        table = config.model.position.max_length
        for name, tokens in (("length", length), ("new_tokens", wanted.new_tokens + 1)):
            if tokens > table:
                raise UserError(f"eval.throughput.{name} = {wanted[name]}: the learned table has {table} positions")
        prompt = min(length, table - wanted.new_tokens)
    batch_size = wanted.batch_size or config.data.batch_size
    return Shape(batch_size, length, wanted.decode_batch_size, prompt, wanted.new_tokens)


def element_bytes(config: ConfigDict) -> int:
    """Returns the bytes of one number of the KV cache."""
    return jnp.dtype(compute_dtype(config)).itemsize


def training_config(config: ConfigDict) -> ConfigDict:
    """Returns the config with the shapes asked for, for the training step."""
    found = shape(config)
    changed = validate.from_dict(validate.to_dict(config))
    changed.data.batch_size, changed.data.length = found.batch_size, found.length
    if changed.data.batch_size % changed.data.micro_batches:
        changed.data.micro_batches = 1
    return changed


def lower_train_step(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers the training step."""
    return steps.lower(training_config(config))


def lower_prefill(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers prefill of a whole batch into an empty cache."""
    found = shape(config)
    abstract = steps.abstract(config)
    cache = jax.eval_shape(lambda: KVCache.create(config.model, found.batch_size, found.length))
    tokens = jax.ShapeDtypeStruct((found.batch_size, found.length), jnp.int32)
    return decode.prefill.lower(abstract.graphdef, abstract.params, cache, tokens)


def lower_decode(config: ConfigDict) -> jax.stages.Lowered:
    """Lowers one decoding step with a cache that holds the prompt and all new tokens."""
    found = shape(config)
    abstract = steps.abstract(config)
    rows = found.decode_batch_size
    cache = jax.eval_shape(lambda: KVCache.create(config.model, rows, found.capacity))
    tokens = jax.ShapeDtypeStruct((rows,), jnp.int32)
    return decode.step.lower(abstract.graphdef, abstract.params, cache, tokens, tokens)


LOWERED: dict[str, Callable[[ConfigDict], Any]] = {
    "train_step": lower_train_step,
    "prefill": lower_prefill,
    "decode": lower_decode,
}


def kernels_in(lowered: jax.stages.Lowered) -> str:
    """Returns the attention cores a program holds, by the scopes `attend` runs them in, joined by "+"."""
    found = set(re.findall(rf"attention_({'|'.join(KERNELS)})\b", lowered.as_text(debug_info=True)))
    return "+".join(name for name in KERNELS if name in found)
