"""Whole configs as Hypothesis draws them: causal by gradient, and decoding is the forward pass."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from ml_collections import ConfigDict

from tests.drawing import configs
from tests.models.common import build, close, tokens

T = 7  # tokens a row: past the original length of scalings and the windows that are drawn
CUT = 4  # where the packed row's second document begins


def forward(config: ConfigDict, graphdef: Any, params: Any, ids: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns, by one compiled program, what whole rows give.

    The logits [T, T, V] of the row's beginnings, of 1 .. T tokens, padded on the right; the logits [T, V] of a row of
    two documents, its first 4 and its first 3 tokens; and the gradients [T, T, D] of output t with respect to the
    embedding of token s.
    """
    beginnings = jnp.tril(jnp.ones((T, T), jnp.int32))
    rows = jnp.concatenate([jnp.tile(ids, (T, 1)), jnp.concatenate([ids[:CUT], ids[: T - CUT]])[None]])
    segments = jnp.concatenate([beginnings, jnp.asarray([[1] * CUT + [2] * (T - CUT)])])
    places = jnp.concatenate([beginnings * jnp.arange(T), jnp.asarray([[*range(CUT), *range(T - CUT)]])])
    weights = jnp.cos(jnp.arange(config.width))

    def outputs(table: jax.Array, params: Any) -> jax.Array:
        # The row's tokens are read from a table of their own, so that the table is the input.
        params = nnx.State({**params, "embedding": params["embedding"].replace(table)})
        return nnx.merge(graphdef, params).hidden(jnp.arange(T)[None])[0] @ weights

    @jax.jit
    def run(params: Any, rows: jax.Array) -> Any:
        logits = nnx.merge(graphdef, params)(rows, places, segments)
        gradients = jax.jacrev(outputs)(params["embedding"][...][rows[0]], params)
        return logits[:T], logits[T], gradients

    beginnings, packed, gradients = run(params, rows)
    other = run(params, rows.at[T, :CUT].set((ids[:CUT] + 1) % config.vocab_size))[1]
    assert (packed[CUT:] == other[CUT:]).all(), "a document sees the one before it"
    assert not (packed[:CUT] == other[:CUT]).all()
    return beginnings, packed, gradients


def in_pieces(graphdef: Any, params: Any, ids: jax.Array) -> jax.Array:
    """Returns the logits [2, T, V] of 3 tokens and then one by one: the row, and its beginning behind padding."""
    rows = jnp.stack([ids, jnp.concatenate([ids[:2], ids[: T - 2]])])
    segments = jnp.ones((2, T), jnp.int32).at[1, :2].set(0)
    places = jnp.stack([jnp.arange(T), jnp.maximum(jnp.arange(T) - 2, 0)])

    @jax.jit
    def read(params: Any, cache: Any, *args: jax.Array) -> Any:
        return nnx.merge(graphdef, params)(*args, cache=cache)

    cache, logits = nnx.merge(graphdef, params).cache(2, T), []
    for part in (slice(0, 3), *(slice(t, t + 1) for t in range(3, T))):
        out, cache = read(params, cache, *(np.asarray(x)[:, part] for x in (rows, places, segments)))
        logits.append(np.asarray(out))
    return np.concatenate(logits, axis=1)


def holds(config: ConfigDict) -> None:
    graphdef, params = nnx.split(build(config.model))
    ids = tokens(1, T)[0]
    beginnings, packed, gradients = map(np.asarray, forward(config.model, graphdef, params, ids))
    size = np.abs(gradients).max(-1)
    assert np.isfinite(size).all() and np.isfinite(packed).all()
    assert (np.triu(size, 1) == 0).all(), "an output depends on a later token"
    assert (np.diag(size) > 0).all()
    close(packed, np.concatenate([beginnings[CUT - 1, :CUT], beginnings[T - CUT - 1, : T - CUT]]), 5e-5)
    # A step gives what the forward pass gives over the tokens up to it, whose lengths are those of that step.
    got, last = in_pieces(graphdef, params, ids), beginnings[np.arange(T), np.arange(T)]
    close(got[0], np.concatenate([beginnings[2, :3], last[3:]]), 5e-5)
    close(got[1, 2:], last[: T - 2], 5e-5)


@pytest.mark.fault(2, 3, 7, 13, 17)
@settings(max_examples=8)
@given(configs())
def test_causal_and_decoded_as_read(config: ConfigDict) -> None:
    """No output has a gradient by a later token; documents side by side are as alone; steps are the forward pass."""
    holds(config)


@pytest.mark.slow
@settings(max_examples=150, derandomize=False, print_blob=True)
@given(configs())
def test_causal_and_decoded_as_read_at_length(config: ConfigDict) -> None:
    holds(config)
