"""Top-k softmax (Gupta et al., arXiv 2106.06899): each query attends to the keys of its largest scores alone."""

import jax.numpy as jnp
from jax import Array, lax

TIE = 1e-5  # relative to a query's largest score: scores nearer than that are equal but for rounding


def top_k(scores_BHTS: Array, keys: int) -> Array:
    """Returns scores with -inf for all but each query's `keys` largest, by head; equal ones at the border all stay.

    Equal keys are frequent: without positions, a token that occurs again has the same key in the first layer. Matmuls
    of different shapes round their scores differently, so scores within `TIE` count as equal; otherwise a prompt read
    at once would keep other keys than the same prompt read token by token. (This is of float32: activations in bfloat16
    differ by more between the two, and so may the keys at the border.) Which keys stay is not differentiated; a query
    that sees no more keys than that keeps all of them.
    """
    if keys >= scores_BHTS.shape[3]:
        return scores_BHTS
    scores = lax.stop_gradient(scores_BHTS)
    largest = jnp.max(jnp.where(jnp.isfinite(scores), jnp.abs(scores), 0), axis=-1, keepdims=True)
    least = lax.top_k(scores, keys)[0][..., -1:] - TIE * largest
    return jnp.where(scores >= least, scores_BHTS, -jnp.inf)
