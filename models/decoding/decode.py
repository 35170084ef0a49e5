"""Generation: prefill, then one token a step, in one compiled program."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from configs.errors import UserError
from models.decoding.kv_cache import KVCache
from models.metadata import each
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
        segments_BT: 0 for padding, which is on the left; None: no padding.

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

    A cache without room gives NaN; `KVCache.room_for` checks before.
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
    top_p: float = 1.0,
    key: Array | None = None,
    frequencies: stretched.Frequencies | None = None,
) -> Array:
    """Returns int32 [B, max_new], the continuation of each prompt through the KV cache.

    Args:
        graphdef: of a Transformer.
        params: its parameters.
        tokens_BT: the prompts.
        max_new: tokens to add to each row.
        mask_BT: 1 for a token, 0 for padding, which is on the left: 0 0 1 1 1 puts the tokens at places 0 1 2.
        temperature: 0: the likeliest token; else logits are divided by it and a token is drawn.
        top_p: share of the probability, after the temperature, that tokens are drawn from (see `nucleus`).
        key: for drawing.
        frequencies: of a RoPE scaling, in place of the model's own (`positions.stretched`).

    Raises:
        UserError: what `check` refuses, a temperature or top_p out of range, or drawing without a key.
    """
    tokens = jnp.asarray(tokens_BT, jnp.int32)
    mask = None if mask_BT is None else np.asarray(mask_BT)
    check(graphdef, params, tokens.shape, max_new, mask)
    if not 0 <= temperature < np.inf or (temperature > 0 and key is None):
        raise UserError(f"generate: temperature = {temperature}: must be 0, or more with a key")
    if not 0 < top_p <= 1:
        raise UserError(f"generate: top_p = {top_p}: must be in (0, 1]")
    if max_new == 0 or tokens.shape[0] == 0:
        return jnp.zeros((tokens.shape[0], max_new), jnp.int32)
    if mask is not None and mask.all():
        mask = None
    sampling = (jnp.float32(temperature), None if top_p == 1 else jnp.float32(top_p)) if temperature else None
    padding = None if mask is None else jnp.asarray(mask, jnp.int32)
    return _generate(graphdef, max_new, params, tokens, padding, sampling, key, frequencies or {})


def check(graphdef: Any, params: Any, shape: tuple[int, ...], max_new: int, mask_BT: np.ndarray | None = None) -> None:
    """Refuses prompts of `shape` that the model cannot continue by `max_new` tokens; `params` may be shapes alone.

    Raises:
        UserError: an empty prompt, padding that is not on the left, a negative max_new, or more tokens than the model's
            positions serve (a learned table's rows).
    """
    if len(shape) != 2 or shape[1] == 0:
        raise UserError(f"generate: prompts must be [batch, length] with a token at least, not {shape}")
    if max_new < 0:
        raise UserError(f"generate: max_new = {max_new}: must be 0 or more")
    longest = shape[1]
    if mask_BT is not None:
        if mask_BT.shape != shape:
            raise UserError(f"generate: the mask is {mask_BT.shape}, the prompts {shape}")
        if (
            not np.isin(mask_BT, (0, 1)).all()
            or (np.diff(mask_BT.astype(np.int8), axis=1) < 0).any()
            or (mask_BT[:, -1:] == 0).any()
        ):
            raise UserError("generate: the mask must be 0 .. 0 1 .. 1 in each row: padding must be on the left")
        longest = int(mask_BT.sum(axis=1).max(initial=1))
    # The last new token is given out, never read in.
    for scheme in nnx.merge(graphdef, params).schemes.values():
        scheme.check(longest + max(max_new - 1, 0))


def _capacities(length: int, max_new: int, windows: Sequence[int | None] = (None,)) -> list[int]:
    """Returns the cache's sizes over time: it doubles, so that steps do not read slots that are long to come.

    From where all layers roll (of whose windows none is None), it stays as it is.
    """
    need, size, sizes = length + max_new - 1, max(2 * length, 256), []
    largest = max((need if window is None else window for window in windows), default=need)
    while size < min(need, largest):
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
    sampling: tuple[Array, Array | None] | None,
    key: Array | None,
    frequencies: stretched.Frequencies,
) -> Array:
    model = nnx.merge(graphdef, narrowed(params, graphdef))
    stretched.apply(model, frequencies)
    layers, table_DV = model.layers(), model.output_table()
    rows, length = tokens.shape
    positions = None if mask is None else jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    at = jnp.full((rows,), length, jnp.int32) if positions is None else positions[:, -1] + 1

    def pick(logits: Array, index: Array | int) -> Array:
        with jax.named_scope("sampling"):
            if sampling is None or key is None:
                return jnp.argmax(logits, axis=-1).astype(jnp.int32)
            logits = logits / sampling[0] if sampling[1] is None else nucleus(logits / sampling[0], sampling[1])
            return jax.random.categorical(jax.random.fold_in(key, index), logits).astype(jnp.int32)

    def advance(carry: tuple[Array, Array, KVCache], index: Array) -> tuple[tuple[Array, Array, KVCache], Array]:
        token, at, cache = carry
        hidden, cache = model.hidden(token[:, None], at[:, None], cache=cache, layers=layers)
        token = pick(model.logits(hidden[:, 0], table_DV), index)
        return (token, at + 1, cache), token

    capacities = _capacities(length, max_new, model.layout.windows)
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


def nucleus(logits: Array, top_p: Array | float) -> Array:
    """Returns logits [..., V] with all but the nucleus at -inf (top-p sampling, arXiv 1904.09751).

    The nucleus is the smallest set of likeliest tokens whose probabilities come to `top_p` or more; among equals the
    lower id comes first. It is never empty, and with top_p = 1 it is everything.
    """
    order = jnp.argsort(logits, axis=-1, descending=True, stable=True)
    likeliest = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(likeliest, axis=-1) - likeliest
    # The sum reaches 1 by rounding before the last tokens; only the first token has a sum of exactly 0 before it.
    keep = (before < top_p).at[..., 0].set(True) | (jnp.asarray(top_p) >= 1)
    kept = jnp.put_along_axis(jnp.zeros_like(keep), order, keep, axis=-1, inplace=False)
    return jnp.where(kept, logits, -jnp.inf)


def narrowed(params: Any, graphdef: Any) -> Any:
    """Returns parameters of which those that matmuls cast have the compute dtype already: no step casts them again."""
    dtype = nnx.merge(graphdef, params).dtype
    with jax.named_scope("layer_slices"):
        cast = each(params, lambda declared: declared.cast)
        return jax.tree.map(lambda leaf, expected: leaf.astype(dtype) if expected else leaf, params, cast)
