"""Selective attention (Leviathan et al., arXiv 2410.02703): a token decides which earlier tokens later ones forget."""

import jax
import jax.numpy as jnp
from jax import Array

from models.kernels.masks import Masking

FORGOTTEN = "forgotten"  # in a layer's cache: float32 [B, 1, S, 1], F of each token after the last query


def forgotten(scores_BTS: Array, masking: Masking, before_BS: Array | None = None) -> tuple[Array, Array]:
    """Returns F [B, T, S], which is subtracted from every head's scores, and its value [B, S] after the last query.

        F[i, j] = sum over k < i of S[k, j]      S[k, j] = max(0, s[k, j]), 0 of hidden keys, for j = k, and for the
                                                 sequence's first token

    s are the first head's scores, scaled and capped, before the bias of positions (section 3). A query's selection acts
    from the next query on, so F is causal, and decoding keeps one number per token and layer. Queries are in the order
    of their sequence. Computed in float32.

    Args:
        scores_BTS: s, -inf where a key is hidden.
        masking: of the same queries and keys.
        before_BS: F after the queries before these; None: there are none.
    """
    with jax.named_scope("selective"):
        q_places, kv_places = (jnp.asarray(places) for places in masking.places())
        own = q_places[:, :, None] == kv_places[:, None, :]
        kept = own | (kv_places == 0)[:, None, :] | ~jnp.isfinite(scores_BTS)
        selected = jnp.where(kept, 0, jax.nn.relu(jnp.where(kept, 0, scores_BTS)))
        sums = jnp.cumsum(jnp.pad(selected, ((0, 0), (1, 0), (0, 0))), axis=1)
        sums = sums if before_BS is None else sums + before_BS[:, None]
        return sums[:, :-1], sums[:, -1]
