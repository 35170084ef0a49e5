"""The protocol of positional schemes: four places where one may act."""

from collections.abc import Callable
from typing import ClassVar, Self

import jax
from flax import nnx
from jax import Array

from models.metadata import each

# (q_positions [B|1, T], kv_positions [B|1, S]) -> [B|1, H, T, S] float32, added to the scores; called on blocks.
BiasFunction = Callable[[Array, Array], Array]

# (q [B, T, H, K], float32 scores [B, H, T, S], the mask bool [B|1, T, S] or None: all visible, kv_positions [B|1, S] or
# None: 0 .. S - 1) -> [B, H, T, S] float32, added to the scores; called once, on the whole.
ScoresFunction = Callable[[Array, Array, Array | None, Array | None], Array]


class Scheme:
    """A positional scheme: pure functions of positions given as arrays, built once from the config.

    A subclass overrides the methods of the places it acts in and names these in `places`:

    - `embed`: adds to the token embedding (learned, sinusoidal);
    - `rotate`: rotates queries and keys (RoPE and its kin);
    - `bias`: gives a function of positions that is added to the scores (ALiBi, T5, ...);
    - `scores`: reads the scores themselves and adds to them (CoPE).

    A scheme with parameters is also an `nnx.Module`; one without is a frozen dataclass, which compares by value. Where
    each layer has parameters of its own (as `models/declared/positions.py` says) they are stacked, over those layers
    that have the scheme, and `layer` gives one layer's.

    Positions are int32 [B, T], or [1, T] where every row has the same, or None for 0 .. T - 1. A token's position
    counts from the start of its own sequence, whatever its place in the row: packed documents, left padding and
    decoding are not special.
    """

    places: ClassVar[frozenset[str]] = frozenset()

    @property
    def uses_lengths(self) -> bool:
        """Whether `rotate` depends on the sequence's length; then cached keys serve one length (see `KVCache`)."""
        return False

    @property
    def score_factor(self) -> float | Array:
        """What multiplies the scores of multi-head latent attention, of which `rotate` rotates a part alone."""
        return 1.0

    def check(self, length: int) -> None:
        """Refuses a length the scheme cannot serve.

        Raises:
            ConfigError: there are not so many positions.
        """

    def embed(self, x_BTD: Array, positions: Array | None = None) -> Array:
        """Returns the token embeddings x [B, T, D] with the scheme's own added."""
        return x_BTD

    def rotate(
        self, x_BTHK: Array, positions: Array | None = None, lengths: Array | None = None, *, keys: bool = False
    ) -> Array:
        """Returns queries, or keys where `keys` says so, rotated by their positions.

        `lengths` is int32 [B|1, T]: for each token the length of its own sequence (see `sequence_lengths`); only
        read where `uses_lengths`.
        """
        return x_BTHK

    def bias(self) -> BiasFunction | None:
        """Returns the function of positions added to the scores, or None."""
        return None

    def scores(self) -> ScoresFunction | None:
        """Returns the function of the scores added to the scores, or None."""
        return None

    def layer(self, index: int | Array) -> Self:
        """Returns the scheme of one layer: `index` counts those of the layers that have this kind of scheme."""
        if not isinstance(self, nnx.Module):
            return self
        graph, state = nnx.split(self)
        own = each(state, lambda declared: declared.stacked)
        return nnx.merge(graph, jax.tree.map(lambda leaf, stacked: leaf[index] if stacked else leaf, state, own))
