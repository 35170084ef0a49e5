"""The protocol of positional schemes: four places where one may act."""

from collections.abc import Callable
from typing import ClassVar

from jax import Array

# (q_positions [B|1, T], kv_positions [B|1, S]) -> [B|1, H, T, S] float32, added to the scores; called on blocks.
BiasFunction = Callable[[Array, Array], Array]


class Scheme:
    """A positional scheme: pure functions of positions given as arrays, built once from the config.

    A subclass overrides the methods of the places it acts in and names these in `places`:

    - `embed`: adds to the token embedding (learned, sinusoidal);
    - `rotate`: turns queries and keys (RoPE and its kin);
    - `bias`: gives a function of positions that is added to the scores (ALiBi, T5, ...);
    - `scores`: reads the scores themselves (kept for CoPE; no scheme acts there yet).

    A scheme with parameters is also an `nnx.Module`; one without is a frozen dataclass, which compares by value.

    Positions are int32 [B, T], or [1, T] where every row has the same, or None for 0 .. T - 1. A token's position
    counts from the start of its own sequence, whatever its place in the row: packed documents, left padding and
    decoding are not special.
    """

    places: ClassVar[frozenset[str]] = frozenset()

    @property
    def uses_lengths(self) -> bool:
        """Whether `rotate` depends on the sequence's length; if so, a cache must hold keys before rotation."""
        return False

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
        """Returns queries, or keys where `keys` says so, turned by their positions.

        `lengths` is int32 [B|1, T]: for each token the length of its own sequence (see `sequence_lengths`); only
        read where `uses_lengths`.
        """
        return x_BTHK

    def bias(self) -> BiasFunction | None:
        """Returns the function added to the scores, or None."""
        return None
