"""ALiBi: a penalty that grows with distance, at a fixed slope for each head (Press et al., arXiv 2108.12409)."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from models.positions.head_bias import HeadBias, Scalars
from models.positions.scheme import Scheme


def slopes(num_heads: int) -> np.ndarray:
    """Returns m_h, float32 [H]: 2^(-8h/H) for h = 1 .. H where H is a power of two.

    Other counts take the slopes of the power of two below, c, then those at odd places (1st, 3rd, ...) of 2c: the
    authors' code, which the paper leaves to its repository.
    """
    below = 2 ** int(math.log2(num_heads))

    def geometric(count: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, count + 1) / count)

    return np.concatenate([geometric(below), geometric(2 * below)[0::2][: num_heads - below]]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Alibi(Scheme):
    """Adds -m_h (i - j) to the scores of query position i and key position j in head h.

    The paper adds m_h j, the same up to a constant of each query, which softmax does not see; a distance keeps its
    precision at any position. Keys after the query (only where nothing masks them) count as before it: -m_h |i - j|.
    """

    num_heads: int

    places: ClassVar[frozenset[str]] = frozenset({"bias"})

    def bias(self) -> HeadBias:
        """Returns the function of query positions [B|1, T] and key positions [B|1, S] that is added: [B|1, H, T, S]."""

        def of_head(scalars: Scalars, q: Array, k: Array) -> Array:
            return -scalars["slope"] * jnp.abs(q - k).astype(jnp.float32)

        slopes_H = jnp.asarray(slopes(self.num_heads))
        return HeadBias(of_head, {"slope": slopes_H}, constant=frozenset({"slope"}))


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Alibi:
    """Builds ALiBi for config.model's heads."""
    return Alibi(config.num_heads)
