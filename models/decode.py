"""Generation: prefill, then one token a step, in one compiled program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from configs.errors import UserError
from models.kv_cache import KVCache
from models.positions import stretched
from models.transformer import Transformer


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def prefill(
    graphdef: Any,
    params: Any,
    cache: KVCache,
    tokens_BT: Array,
    positions_BT: Array | None = None,
    segments_BT: Array | None = None,
) -> tuple[Array, KVCache]:
    """Returns float32 logits [B, V] of each row's last token, and the cache with the whole prompt.

    Args:
        graphdef: of a Transformer.
        params: its parameters.
        cache: empty; it is donated.
        tokens_BT: the prompts.
        positions_BT: each token's place in its own sequence; None: 0 .. T - 1.
        segments_BT: 0 for padding, which stands on the left; None: no padding.

    Raises:
        ValueError: the prompt is longer than the cache.
    """
    model = nnx.merge(graphdef, params)
    return _prefill(model, cache, tokens_BT, positions_BT, segments_BT, None)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def step(
    graphdef: Any, params: Any, cache: KVCache, tokens_B: Array, positions_B: Array | None = None
) -> tuple[Array, KVCache]:
    """Returns float32 logits [B, V] after one more token a row, and the cache with it; the cache is donated.

    A cache without room gives NaN; `KVCache.room_for` tells before.
    """
    model = nnx.merge(graphdef, params)
    positions = None if positions_B is None else positions_B[:, None]
    logits, cache = model(tokens_B[:, None], positions, cache=cache)
    return logits[:, 0], cache


def _prefill(
    model: Transformer, cache: KVCache, tokens: Array, positions: Array | None, segments: Array | None, layers: Any
) -> tuple[Array, KVCache]:
    hidden, cache = model.hidden(tokens, positions, segments, cache=cache, fresh=True, last_only=True, layers=layers)
    return model.logits(hidden[:, 0]), cache


def generate(
    graphdef: Any,
    params: Any,
    tokens_BT: Array | np.ndarray,
    *,
    max_new: int,
    mask_BT: Array | np.ndarray | None = None,
    temperature: float = 0.0,
    key: Array | None = None,
    frequencies: stretched.Frequencies | None = None,
) -> Array:
    """Returns int32 [B, max_new], the continuation of each prompt through the KV cache.

    Args:
        graphdef: of a Transformer.
        params: its parameters.
        tokens_BT: the prompts.
        max_new: tokens to add to each row.
        mask_BT: 1 for a token, 0 for padding, which stands on the left: 0 0 1 1 1 puts the tokens at places 0 1 2.
        temperature: 0: the likeliest token; else logits are divided by it and a token is drawn.
        key: for drawing.
        frequencies: of a RoPE scaling, in place of the model's own (`positions.stretched`).

    Raises:
        UserError: an empty prompt, padding that is not on the left, a negative max_new or temperature, drawing without
            a key, or more tokens than a learned table of positions has.
    """
    tokens = jnp.asarray(tokens_BT, jnp.int32)
    mask = None if mask_BT is None else np.asarray(mask_BT)
    _check(graphdef, params, tokens, max_new, mask, temperature, key)
    if max_new == 0 or tokens.shape[0] == 0:
        return jnp.zeros((tokens.shape[0], max_new), jnp.int32)
    if mask is not None and mask.all():
        mask = None
    heat = jnp.float32(temperature) if temperature else None
    padding = None if mask is None else jnp.asarray(mask, jnp.int32)
    return _generate(graphdef, max_new, params, tokens, padding, heat, key, frequencies or {})


def _check(
    graphdef: Any, params: Any, tokens: Array, max_new: int, mask: np.ndarray | None, temperature: float, key: Any
) -> None:
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise UserError(f"generate: prompts must be [batch, length] with a token at least, not {tokens.shape}")
    if max_new < 0:
        raise UserError(f"generate: max_new = {max_new}: must be 0 or more")
    if temperature < 0 or (temperature > 0 and key is None):
        raise UserError(f"generate: temperature = {temperature}: must be 0, or more with a key")
    longest = tokens.shape[1]
    if mask is not None:
        if mask.shape != tokens.shape:
            raise UserError(f"generate: the mask is {mask.shape}, the prompts {tokens.shape}")
        if (
            (np.diff(mask.astype(np.int8), axis=1) < 0).any()
            or not np.isin(mask, (0, 1)).all()
            or (mask[:, -1:] == 0).any()
        ):
            raise UserError("generate: the mask must be 0 .. 0 1 .. 1 in each row: padding stands on the left")
        longest = int(mask.sum(axis=1).max(initial=1))
    # The last new token is given out, never read in.
    for scheme in nnx.merge(graphdef, params).schemes.values():
        scheme.check(longest + max_new - 1)


def _capacities(length: int, max_new: int) -> list[int]:
    """Returns the cache's sizes over time: it doubles, so that steps do not read slots that are long to come."""
    need, size, sizes = length + max_new - 1, max(2 * length, 256), []
    while size < need:
        sizes.append(size)
        size *= 2
    return [*sizes, need]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generate(
    graphdef: Any,
    max_new: int,
    params: Any,
    tokens: Array,
    mask: Array | None,
    heat: Array | None,
    key: Array | None,
    frequencies: stretched.Frequencies,
) -> Array:
    model = nnx.merge(graphdef, narrowed(params, graphdef))
    stretched.apply(model, frequencies)
    layers = model.layers()
    rows, length = tokens.shape
    positions = None if mask is None else jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    at = jnp.full((rows,), length, jnp.int32) if positions is None else positions[:, -1] + 1

    def pick(logits: Array, index: Array | int) -> Array:
        if heat is None or key is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jax.random.categorical(jax.random.fold_in(key, index), logits / heat).astype(jnp.int32)

    def advance(carry: tuple[Array, Array, KVCache], index: Array) -> tuple[tuple[Array, Array, KVCache], Array]:
        token, at, cache = carry
        hidden, cache = model.hidden(token[:, None], at[:, None], cache=cache, layers=layers)
        token = pick(model.logits(hidden[:, 0]), index)
        return (token, at + 1, cache), token

    capacities = _capacities(length, max_new)
    cache = model.cache(rows, capacities[0])
    logits, cache = _prefill(model, cache, tokens, positions, mask, layers)
    first = pick(logits, 0)
    carry, out, done = (first, at, cache), [first[:, None]], 1
    for capacity in capacities:
        carry = (*carry[:2], carry[2].grown(capacity))
        until = min(max_new, capacity - length + 1)
        carry, new = jax.lax.scan(advance, carry, jnp.arange(done, until))
        out.append(new.T)
        done = until
    return jnp.concatenate(out, axis=1)


def narrowed(params: Any, graphdef: Any) -> Any:
    """Returns parameters whose matrices have the compute dtype already, so that no step casts them again."""
    dtype = nnx.merge(graphdef, params).dtype

    def cast(path: Any, leaf: Array) -> Array:
        return leaf.astype(dtype) if jax.tree_util.keystr(path).find("kernel") >= 0 else leaf

    return jax.tree_util.tree_map_with_path(cast, params)
