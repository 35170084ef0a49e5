"""Top-k softmax (Gupta et al., arXiv 2106.06899): each query attends to the keys of its largest scores alone."""

import jax.numpy as jnp
from jax import Array, lax


def top_k(scores_BHTS: Array, keys: int) -> Array:
    """Returns scores with -inf for all but each query's `keys` largest, by head; equal ones at the border all stay.

    Which keys stay is not differentiated; a query that sees no more keys than that keeps all of them.
    """
    if keys >= scores_BHTS.shape[3]:
        return scores_BHTS
    least = lax.top_k(lax.stop_gradient(scores_BHTS), keys)[0][..., -1:]
    return jnp.where(scores_BHTS >= least, scores_BHTS, -jnp.inf)
