"""Which keys each query sees: causal order, a window and segments, combined as booleans once."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclasses.dataclass(frozen=True)
class Masking:
    """A key is visible iff it is in the query's segment (not 0), not after it, and nearer than the window.

    Without positions, query i is at S - T + i and key j at j: the last query sees the last key (bottom-right).
    `aligned` promises that query i is key row S - T + i and that positions grow along a row within each segment, so
    that what the order of rows hides, positions hide too.
    """

    q_len: int  # T
    kv_len: int  # S
    causal: bool = True
    window: int | None = None  # keys seen, the query's own included
    aligned: bool = True
    q_positions: Array | None = None  # int32 [B|1, T]
    kv_positions: Array | None = None  # int32 [B|1, S]
    q_segments: Array | None = None  # int32 [B|1, T]
    kv_segments: Array | None = None  # int32 [B|1, S]

    @property
    def offset(self) -> int:
        """The key row of query 0."""
        return self.kv_len - self.q_len

    @property
    def has_positions(self) -> bool:
        """Whether positions are given."""
        return self.q_positions is not None or self.kv_positions is not None

    @property
    def ordered(self) -> bool:
        """Whether the order of rows bounds what is visible, so that blocks can be skipped."""
        return self.aligned or not self.has_positions

    @property
    def by_index(self) -> bool:
        """Whether row numbers say the same as positions; a window counts positions, which may have gaps."""
        return not self.has_positions or (self.aligned and (self.window is None or not self.causal))

    @property
    def exact(self) -> bool:
        """Whether the order of rows alone decides what is visible."""
        return self.by_index and self.q_segments is None

    @property
    def empty_rows(self) -> bool:
        """Whether a query may see no key at all."""
        return not self.exact or (self.causal and self.offset < 0)

    def places(self) -> tuple[Array | np.ndarray, Array | np.ndarray]:
        """Returns the positions of queries [B|1, T] and keys [B|1, S], made up from row numbers where not given."""
        rows, columns = np.arange(self.q_len, dtype=np.int32)[None], np.arange(self.kv_len, dtype=np.int32)[None]
        return (
            rows + np.int32(self.offset) if self.q_positions is None else self.q_positions,
            columns if self.kv_positions is None else self.kv_positions,
        )

    def visible(self) -> Array | None:
        """Returns the whole mask, bool [B|1, T, S], or None if every key is visible."""
        if self.by_index:
            plain = dataclasses.replace(self, q_positions=None, kv_positions=None)
            q_places, kv_places = plain.places()
        else:
            q_places, kv_places = self.places()
        return visible(q_places, kv_places, self.q_segments, self.kv_segments, self.causal, self.window)


def visible(
    q_places: Array | np.ndarray,
    kv_places: Array | np.ndarray,
    q_segments: Array | None,
    kv_segments: Array | None,
    causal: bool,
    window: int | None,
) -> Array | None:
    """Returns bool [B|1, T, S] for places (positions or row numbers) [B|1, T] and [B|1, S], or None: all visible."""
    parts = []
    if causal:
        distance = q_places[:, :, None] - kv_places[:, None, :]
        parts.append(distance >= 0)
        if window is not None:
            parts.append(distance < window)
    if q_segments is not None and kv_segments is not None:
        parts.append((q_segments[:, :, None] == kv_segments[:, None, :]) & (kv_segments != 0)[:, None, :])
    if not parts:
        return None
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part
    return jnp.asarray(mask)
