"""What decoding keeps: the keys and values of every layer (or what they are made of), and where their tokens lie.

A layer without a window has `capacity` slots. One whose window of W tokens fits into them has W: there slot s holds the
last token whose number is s modulo W, so a step writes over the token that has just left the window and reads W slots.

Tokens are numbered as they come, the same in every row. Where a row has none (padding) its slot has segment 0, and
nothing sees it. Padding may stand anywhere: where it could push a token out of a rolling layer too early, each row's
tokens are moved up so that padding is dropped first (`_latest`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from models import positions as schemes
from models.declared.attention import kind_of
from models.declared.switches import totals
from models.decoding import storage
from models.decoding.storage import Stored
from models.layers import compute_dtype
from models.padding import raised
from models.pattern import of_layer, owners, plans

# What one layer keeps, by name, e.g. k and v [B, G, S, K], without B and G where they are 1 (`_squeezed`). Heads stand
# before slots, as the two products read them.
Entry = Mapping[str, Stored]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a model's cache is made of, beside its size.

    Layers that read another's keys and values keep nothing: a layer below is one that has its own.
    """

    arrays: tuple[tuple[tuple[str, int, int], ...], ...]  # of each layer: name, heads G, numbers per head K
    windows: tuple[int | None, ...]  # of each layer
    storage: str  # auto, int8 or fp8
    dtype: Any  # of what is stored as it is
    totals: tuple[str, ...] = ()  # of every layer: one float32 per token each, whatever `storage` is

    @classmethod
    def of(cls, config: ConfigDict) -> "Layout":
        """Reads it from a resolved config.model."""
        arrays, every = [], plans(config)
        for layer in owners(config):
            shapes = kind_of(config).kept(of_layer(config, layer))
            arrays.append(tuple((name, *shape) for name, shape in shapes.items()))
        windows = tuple(every[layer].window for layer in owners(config))
        return cls(tuple(arrays), windows, config.attention.kv_storage, compute_dtype(config), totals(config))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Track:
    """Where the tokens of slots lie; None as in `Rows`."""

    positions: Array | None  # int32 [B, S], in each token's own sequence
    segments: Array | None  # int32 [B, S], 0: padding or not yet written; else the sequence's number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """What every layer that has keys and values of its own keeps of the tokens so far.

    Keys are kept rotated by their positions, except where they are the values too (`tie_kv`): those are rotated when
    they are read.

    Each layer has arrays of its own, so that a step writes its slot in place. A row holds `capacity` tokens and a
    further one is an error, unless all layers roll: such a cache never fills.

    Where a RoPE scaling changes with the length, the keys of one length do not serve the next: nor do the hidden states
    behind them, from the second layer on. Such a cache also keeps the tokens (`capacity` of them, so it does fill),
    from which the model recomputes it when the frequencies change.
    """

    entries: tuple[Entry, ...]
    tracks: dict[int, Track]  # by number of slots: layers of one size share theirs
    length: Array  # int32 [], tokens given a slot so far
    next: Array  # int32 [B], the position after each row's last token
    tokens: Array | None  # int32 [B, capacity], only where the frequencies depend on the length
    capacity: int = dataclasses.field(metadata={"static": True})
    windows: tuple[int | None, ...] = dataclasses.field(metadata={"static": True})  # of each layer

    @classmethod
    def create(cls, config: ConfigDict, batch: int, capacity: int, dtype: DTypeLike | None = None) -> "KVCache":
        """Returns an empty cache.

        Args:
            config: a resolved config.model.
            batch: rows.
            capacity: maximum tokens per row, unless all layers roll.
            dtype: of what is stored as it is; None: the compute dtype.
        """
        kinds = {plan.position for plan in plans(config)}
        keep = any(schemes.build(config, kind).uses_lengths for kind in kinds & {"rope", "p_rope"})
        return cls.empty(Layout.of(config), batch, capacity, dtype, keep_tokens=keep)

    @classmethod
    def empty(
        cls, layout: Layout, batch: int, capacity: int, dtype: DTypeLike | None = None, *, keep_tokens: bool
    ) -> "KVCache":
        """Returns an empty cache in arrays that share nothing (see `create`)."""

        def blank(size: int) -> Array:
            return jnp.zeros((batch, size), jnp.int32)

        def entry(size: int, arrays: tuple[tuple[str, int, int], ...]) -> Entry:
            kind = (layout.storage, layout.dtype if dtype is None else dtype)
            results = {name: storage.empty((batch, heads, size, numbers), *kind) for name, heads, numbers in arrays}
            results |= {name: jnp.zeros((batch, 1, size, 1), jnp.float32) for name in layout.totals}
            return jax.tree.map(_squeezed, results)

        sizes = [_size(window, capacity) for window in layout.windows]
        return cls(
            entries=tuple(map(entry, sizes, layout.arrays)),
            tracks={size: Track(blank(size), blank(size)) for size in {*sizes, *([capacity] * keep_tokens)}},
            length=jnp.zeros((), jnp.int32),
            next=jnp.zeros((batch,), jnp.int32),
            tokens=blank(capacity) if keep_tokens else None,
            capacity=capacity,
            windows=layout.windows,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Slots of each layer."""
        return tuple(_size(window, self.capacity) for window in self.windows)

    @property
    def bounded(self) -> bool:
        """Whether the cache can be full: some layer does not roll, or tokens are kept."""
        return self.tokens is not None or any(window is None or window > self.capacity for window in self.windows)

    @property
    def positions(self) -> Array:
        """int32 [B, S] of the layers with the most slots."""
        result = self.tracks[max(self.tracks)].positions
        assert result is not None
        return result

    @property
    def segments(self) -> Array:
        """int32 [B, S] of the layers with the most slots; 0: padding or not yet written."""
        result = self.tracks[max(self.tracks)].segments
        assert result is not None
        return result

    def layer(self, index: int, dtype: DTypeLike = jnp.float32) -> dict[str, Array]:
        """Returns what a layer keeps, by name, as [B, S, G, K]; slots of a rolling layer are not in order."""
        return _read(self.entries[index], self.next.shape[0], dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of what the layers keep, scales included."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.entries))

    @property
    def scale_nbytes(self) -> int:
        """Bytes of the scales among `nbytes`."""
        every = [stored for entry in self.entries for stored in entry.values()]
        return sum(stored.scales.nbytes for stored in every if isinstance(stored, storage.Quantised))

    def rolls(self, size: int) -> bool:
        """Whether layers of `size` slots come round to their first slot again."""
        return size < self.capacity or not self.bounded

    def next_positions(self, count: int) -> Array:
        """Returns int32 [B, count], the positions after each row's last token."""
        return self.next[:, None] + jnp.arange(count, dtype=jnp.int32)

    def room_for(self, count: int) -> None:
        """Refuses to write past the end.

        Inside `jax.jit` the length is not known and nothing can be refused: there `guard` spoils the result.

        Raises:
            ValueError: the cache cannot take `count` more tokens.
        """
        if not self.bounded:
            return
        if count > self.capacity:
            raise ValueError(f"KV cache: {count} tokens at once, of capacity {self.capacity}")
        if not isinstance(self.length, jax.core.Tracer) and int(self.length) + count > self.capacity:
            raise ValueError(f"KV cache is full: {int(self.length)} + {count} slots, of capacity {self.capacity}")

    def guard(self, x: Array) -> Array:
        """Returns x, or NaN everywhere if more was written than fits (a write past the end would move silently)."""
        return jnp.where(self.length <= self.capacity, x, jnp.nan) if self.bounded else x

    def grown(self, capacity: int) -> "KVCache":
        """Returns the cache with empty slots added, up to `capacity`."""
        if capacity <= self.capacity:
            return self
        after = dataclasses.replace(
            self, capacity=capacity, tokens=None if self.tokens is None else raised(self.tokens, -1, capacity)
        )
        tracks, entries = {}, []
        kept = zip(self.entries, self.sizes, after.sizes, strict=True)
        for entry, old, new in (*kept, *([({}, self.capacity, capacity)] if self.tokens is not None else [])):
            at = None
            if after.rolls(new) and not self.rolls(old):
                before = self.tracks[old].segments
                assert before is not None
                segments = raised(before, -1, new)
                at = _latest(segments, segments[:, :0], self.length, self.length)

            def grow(x: Array, axis: int, new: int = new, at: Array | None = at) -> Array:
                x = raised(x, axis, new)
                return x if at is None else _taken(x, at, axis)

            entries.append(jax.tree.map(lambda x, grow=grow: grow(x, -2), entry))
            tracks[new] = jax.tree.map(lambda x, grow=grow: grow(x, -1), self.tracks[old])
        return dataclasses.replace(after, entries=tuple(entries[: len(self.entries)]), tracks=tracks)

    def place(
        self, tokens: Array, positions: Array | None = None, segments: Array | None = None, *, fresh: bool = False
    ) -> "Placement":
        """Returns the tokens with slots given to them, and the cache that knows of these.

        Args:
            tokens: int32 [B, T].
            positions: int32 [B|1, T], each in its own sequence; None: those after each row's last token.
            segments: int32 [B|1, T], 0 for padding; None: no padding, and one sequence per row.
            fresh: nothing was placed before.

        Raises:
            ValueError: see `room_for`.
        """
        shape, count = tokens.shape, tokens.shape[1]
        self.room_for(count)
        own = Track(positions, segments)
        if not fresh:
            own = Track(
                self.next_positions(count) if positions is None else positions,
                jnp.ones(shape, jnp.int32) if segments is None else segments,
            )
        at = jnp.arange(count, dtype=jnp.int32)[None] if own.positions is None else own.positions
        of = jnp.int32(1) if own.segments is None else own.segments
        new = [jnp.broadcast_to(x.astype(jnp.int32), shape) for x in (at, of)]
        slots = {size: self._slots(size, new[1], fresh=fresh, ragged=segments is not None) for size in self.tracks}
        tracks = {
            size: Track(_put(track.positions, new[0], slots[size], -1), _put(track.segments, new[1], slots[size], -1))
            for size, track in self.tracks.items()
        }
        after = new[0][:, -1] + 1
        if segments is not None:
            last = jnp.max(jnp.where(new[1] != 0, jnp.arange(count), -1), axis=1, keepdims=True)
            after = jnp.take_along_axis(new[0], jnp.maximum(last, 0), axis=1)[:, 0] + 1
            after = jnp.where(last[:, 0] < 0, self.next, after)
        cache = dataclasses.replace(
            self,
            tracks=tracks,
            length=self.length + count,
            next=after,
            tokens=None if self.tokens is None else _put(self.tokens, tokens, self.length, -1),
        )
        return Placement(cache, own, self.tracks, slots, self.length, fresh)

    def _slots(self, size: int, segments: Array, *, fresh: bool, ragged: bool) -> Array:
        """Returns where layers of a size put new tokens: from which slot on, or what each slot takes (`_latest`)."""
        count = segments.shape[1]
        start = jnp.int32(0) if fresh else self.length
        if not self.rolls(size):
            return start
        if not ragged and (count == 1 or (fresh and count <= size)):
            return start % size
        old = self.tracks[size].segments
        assert old is not None
        return _latest(jnp.zeros_like(old) if fresh else old, segments, start, start + count)


@dataclasses.dataclass(frozen=True)
class Placement:
    """The tokens of one call with their slots: how a layer writes what it keeps, and what its queries then see."""

    cache: KVCache  # with the tokens placed, their keys and values not yet written
    own: Track  # of the tokens themselves, [B|1, T]
    before: Mapping[int, Track]  # of the cache without them
    slots: Mapping[int, Array]  # by the layer's size, see `KVCache._slots`
    start: Array  # the number of the first token
    fresh: bool  # the cache held nothing before, so attention need not read it

    def keep(
        self, entry: Entry, arrays: Mapping[str, Array], dtype: DTypeLike
    ) -> tuple[Entry, dict[str, Array], Track]:
        """Writes the new tokens' arrays into a layer's entry.

        What comes back to attend to is what is stored, so that neither the pieces in which a prompt is read nor a
        rolling layer change a result.

        Args:
            entry: of the layer.
            arrays: by the entry's names, [B, T, G, K].
            dtype: to compute in.

        Returns:
            The entry with them; by name the arrays [B, S, G, K] that the new tokens' queries may see, themselves
            included; and where these S lie.
        """
        batch, count = next(iter(arrays.values())).shape[:2]
        size = jax.tree.leaves(entry)[0].shape[-2]
        at = self.slots[size]
        rest = {name: stored for name, stored in entry.items() if name not in arrays}  # sums, which the layer updates
        entry = {name: stored for name, stored in entry.items() if name in arrays}
        with jax.named_scope("kv_write"):
            new = {name: storage.encode(arrays[name].swapaxes(1, 2), stored) for name, stored in entry.items()}
            parts = jax.tree.map(_squeezed, new)
            written = jax.tree.map(lambda whole, part: _put(whole, part, at, -2), entry, parts)
        if self.fresh:
            return {**written, **rest}, _read(parts, batch, dtype), self.own
        if at.ndim == 0 or count == 1:
            return {**written, **rest}, _read(written, batch, dtype), self.cache.tracks[size]
        # The first of several queries sees tokens that the last one pushes out.
        with jax.named_scope("kv_read"):
            both = jax.tree.map(lambda whole, part: jnp.concatenate([whole, part], axis=-2), entry, parts)
        track = jax.tree.map(lambda old, new: _join(old, new), self.before[size], self.own)
        return {**written, **rest}, _read(both, batch, dtype), track

    def again(self) -> "Placement":
        """Returns all tokens that the cache holds (it keeps them) in their slots, to recompute what it keeps."""
        whole, length = self.cache.tracks[self.cache.capacity], self.cache.length
        assert whole.segments is not None
        slots = {}
        for size in self.cache.tracks:
            rolls = self.cache.rolls(size)
            nothing = jnp.zeros((whole.segments.shape[0], size), jnp.int32)
            slots[size] = _latest(nothing, whole.segments, jnp.int32(0), length) if rolls else jnp.int32(0)
        return Placement(self.cache, whole, {}, slots, jnp.int32(0), fresh=True)


def _size(window: int | None, capacity: int) -> int:
    return capacity if window is None else min(window, capacity)


def _squeezed(x_BGSK: Array) -> Array:
    """Drops the axes of rows and heads where they are 1.

    The products drop them anyhow. Where the cache itself kept them, XLA wrote each new token twice on the CPU, for the
    product and for the next step, and copied the whole cache in between: three times the attention's own time.
    """
    return x_BGSK.reshape(*(n for n in x_BGSK.shape[:2] if n > 1), *x_BGSK.shape[2:])


def _read(entry: Entry, batch: int, dtype: DTypeLike) -> dict[str, Array]:
    with jax.named_scope("kv_read"):
        full = jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[-2:]), entry)
        return {name: storage.decode(stored, dtype).swapaxes(1, 2) for name, stored in full.items()}


def _latest(old: Array, new: Array, start: Array, end: Array) -> Array:
    """Returns for each slot of a rolling layer which token it takes, int32 [B, R], as an index into old and new ones.

    A row keeps its last R tokens. They end at the slot before `end`, where the next token goes, and what remains of
    the slots takes padding: the next tokens push that out first.

    Args:
        old: segments [B, R] of the slots.
        new: segments [B, T] of the new tokens.
        start: the number of the first token after the old ones.
        end: the number of the first token after the new ones.
    """
    slots = jnp.arange(old.shape[1])
    ring = (start + slots) % old.shape[1]  # the oldest first
    order = jnp.argsort(jnp.concatenate([old[:, ring], new], axis=1) != 0, axis=1, stable=True)[:, new.shape[1] :]
    order = jnp.where(order < old.shape[1], ring[jnp.minimum(order, old.shape[1] - 1)], order)
    return order[:, (slots - end) % old.shape[1]]


def _put(whole: Array | None, part: Array, at: Array, axis: int) -> Array:
    """Writes new tokens into slots (see `KVCache._slots`), which lie on the axis -2 or, in a track, -1."""
    assert whole is not None
    part = part.astype(whole.dtype)
    if at.ndim == 0:
        return jax.lax.dynamic_update_slice_in_dim(whole, part, at, whole.ndim + axis)
    return _taken(jnp.concatenate([whole, part], axis=axis), at, axis)


def _taken(x: Array, at: Array, axis: int) -> Array:
    """Returns the tokens `at` [B, R] of an axis."""
    rows, slots = at.shape
    full = x.reshape(rows, -1, *x.shape[axis:])  # [B, G, S, K], of a track [B, 1, S]
    index = at.reshape(rows, 1, slots, *[1] * (-1 - axis))
    result = jnp.take_along_axis(full, index, axis=axis, mode="promise_in_bounds")
    return result.reshape(*x.shape[:axis], slots, *x.shape[x.ndim + axis + 1 :])


def _join(old: Array, new: Array) -> Array:
    return jnp.concatenate([old, jnp.broadcast_to(new, (old.shape[0], new.shape[1])).astype(old.dtype)], axis=1)
