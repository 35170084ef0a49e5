"""The length of each token's own sequence, for scalings that depend on it."""

import jax
import jax.numpy as jnp
from jax import Array


def sequence_lengths(positions: Array, segments: Array | None = None, of: Array | None = None) -> Array:
    """Returns for each token the length of its own sequence: 1 + the largest position in its segment, in its row.

    Packed documents and padding thus do not influence one another.

    Args:
        positions: int32 [B|1, S], each token's position in its own sequence.
        segments: int32 [B|1, S], 0 for padding, else the document's number; None: one sequence per row.
        of: int32 [B, T], segments of other tokens (the queries of a step against a cache) to answer for.

    Returns:
        int32 [B, S], or [B, T] with `of`; 0 for padding and for segments that `segments` does not hold.
    """
    if segments is None:
        longest = jnp.max(positions, axis=1, keepdims=True) + 1
        return jnp.broadcast_to(longest, positions.shape if of is None else of.shape)
    of = segments if of is None else of
    rows = max(positions.shape[0], segments.shape[0], of.shape[0])
    spread = [jnp.broadcast_to(a, (rows, a.shape[1])) for a in (positions, segments, of)]
    return jax.vmap(_row)(*spread)


def _row(positions: Array, segments: Array, of: Array) -> Array:
    # The rank of a segment's number among the sorted ones is a dense id below S, so a segment may lie in pieces.
    size = segments.shape[0]
    ordered = jnp.sort(segments)
    ids = jnp.searchsorted(ordered, segments)
    longest = jnp.zeros((size,), jnp.int32).at[ids].max(positions.astype(jnp.int32) + 1)
    result = jnp.minimum(jnp.searchsorted(ordered, of), size - 1)
    return jnp.where((of != 0) & (ordered[result] == of), longest[result], 0)
