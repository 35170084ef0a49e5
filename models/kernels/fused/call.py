"""What both platforms' kernels compute of one block: its mask, its scores, and their derivative."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from models.kernels.fused.scalars import Layout, Read
from models.kernels.fused.tiles import Tiles
from models.kernels.masks import Masking
from models.padding import raised

HIDDEN = float("-inf")
MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Call:
    """The static facts of a call. Arrays are padded to whole blocks: T and S are the real lengths."""

    T: int
    S: int
    causal: bool
    window: int | None
    by_index: bool  # masks compare row numbers, not positions
    ordered: bool  # the order of rows bounds what is visible
    segmented: bool
    soft_cap: float | None
    scale: float
    layout: Layout | None  # of the bias
    tiles: Tiles
    platform: str  # gpu or tpu
    interpret: bool

    @classmethod
    def of(cls, masking: Masking, **settings: Any) -> "Call":
        """Reads the facts of the masking."""
        facts = {name: getattr(masking, name) for name in ("causal", "window", "by_index", "ordered")}
        segmented = masking.q_segments is not None
        return cls(masking.q_len, masking.kv_len, segmented=segmented, **facts, **settings)

    @property
    def offset(self) -> int:
        """The key row of query 0."""
        return self.S - self.T

    @property
    def padded(self) -> tuple[int, int]:
        """T and S raised to whole blocks of every pass."""
        sizes = (self.tiles.forward, self.tiles.queries, self.tiles.keys)
        q, k = max(size.q for size in sizes), max(size.k for size in sizes)
        return -(-self.T // q) * q, -(-self.S // k) * k


class Places(NamedTuple):
    """Where a block's queries and keys lie; of each pair one has shape [Q, 1] and the other [1, K], or transposed."""

    rows: Array  # row numbers of the queries
    columns: Array  # and of the keys
    q: Array  # positions
    k: Array
    q_segments: Array | None
    k_segments: Array | None


class Scores(NamedTuple):
    """Scores of a block, -inf where a key is hidden; `tanh` is the soft cap's, kept for its derivative."""

    values: Array
    tanh: Array | None


def visible(call: Call, places: Places) -> Array | None:
    """Returns which keys of a block count, or None for all of them."""
    parts = []
    if call.padded[1] > call.S:
        parts.append(places.columns < call.S)
    q, k = (places.rows + call.offset, places.columns) if call.by_index else (places.q, places.k)
    if call.causal:
        parts.append(q >= k)
        if call.window is not None:
            parts.append(q - k < call.window)
    if places.q_segments is not None and places.k_segments is not None:
        parts += [places.q_segments == places.k_segments, places.k_segments != 0]
    mask = None
    for part in parts:
        mask = part if mask is None else mask & part
    return mask


def scored(call: Call, products: Array, places: Places, read: Read) -> Scores:
    """Returns the scores of a block from the products q.k, float32."""
    values, tanh = call.scale * products, None
    if call.soft_cap is not None:
        tanh = jnp.tanh(values / call.soft_cap)
        values = call.soft_cap * tanh
    if call.layout is not None:
        values += call.layout.value(read, places.q, places.k)
    mask = visible(call, places)
    return Scores(values if mask is None else jnp.where(mask, values, HIDDEN), tanh)


def derivative(scores: Scores, d_scores: Array) -> Array:
    """Returns the gradient of scale q.k from that of the scores as they are with the bias."""
    return d_scores if scores.tanh is None else d_scores * (1 - scores.tanh * scores.tanh)


def dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Returns the product of two matrices over an axis of each, in float32."""
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def bounds(call: Call, given: Mapping[str, Array], q: int, k: int) -> tuple[Array, Array, Array, Array]:
    """Returns which blocks count: of each block of q queries the first block of keys and the one after the last, and of
    each block of k keys the first block of queries and the one after the last; int32 [B|1, blocks].

    From the least and the largest row number, position and segment of each block, so that what is skipped is hidden,
    and between the first and the last a hidden block may remain.
    """
    T, S = call.padded
    rows, columns = jnp.arange(T, dtype=jnp.int32)[None], jnp.arange(S, dtype=jnp.int32)[None]

    def extent(x: Array, size: int, axis: int) -> tuple[Array, Array]:
        blocks = x.reshape(x.shape[0], -1, size)
        return jnp.expand_dims(blocks.min(2), axis), jnp.expand_dims(blocks.max(2), axis)

    (q_first, q_last), (k_first, k_last) = extent(rows, q, 2), extent(columns, k, 1)
    some = (q_first < call.T) & (k_first < call.S)
    if call.causal and call.ordered:
        some &= k_first <= q_last + call.offset
    if call.causal:
        if not call.by_index:
            (q_first, q_last), (k_first, k_last) = extent(given["q_places"], q, 2), extent(given["k_places"], k, 1)
        else:
            q_first, q_last = q_first + call.offset, q_last + call.offset
        some &= k_first <= q_last
        if call.window is not None:
            some &= q_first - k_last < call.window
    if call.segmented:
        # Segment 0 is seen by none: it counts as beyond the least and the largest.
        low = {name: jnp.where(given[name] == 0, MOST, given[name]) for name in ("q_segments", "k_segments")}
        q_least, k_least = extent(low["q_segments"], q, 2)[0], extent(low["k_segments"], k, 1)[0]
        q_most, k_most = extent(given["q_segments"], q, 2)[1], extent(given["k_segments"], k, 1)[1]
        some &= (q_least <= k_most) & (k_least <= q_most)
    return *_ends(some, 2), *_ends(some, 1)


def _ends(some: Array, axis: int) -> tuple[Array, Array]:
    """Returns the first that is true along an axis and the one after the last; 0 and 0 where none is."""
    size = some.shape[axis]
    first = jnp.argmax(some, axis=axis)
    last = size - jnp.argmax(jnp.flip(some, axis), axis=axis)
    return first.astype(jnp.int32), jnp.where(some.any(axis=axis), last, 0).astype(jnp.int32)


def padded_places(call: Call, masking: Masking) -> dict[str, Array]:
    """Returns what masks and biases read, by name: positions and segments, padded to whole blocks.

    Positions that are row numbers are left out: kernels count those themselves.
    """
    T, S = call.padded
    given: dict[str, Array] = {}
    if masking.has_positions and (call.layout is not None or not call.by_index):
        q_places, k_places = (jnp.asarray(places) for places in masking.places())
        # The last position is repeated: a bias must not meet one that does not occur.
        given["q_places"], given["k_places"] = _repeated(q_places, T), _repeated(k_places, S)
    if masking.q_segments is not None and masking.kv_segments is not None:
        given["q_segments"], given["k_segments"] = raised(masking.q_segments, 1, T), raised(masking.kv_segments, 1, S)
    return {name: x.astype(jnp.int32) for name, x in given.items()}


def _repeated(x: Array, length: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1])), mode="edge")
