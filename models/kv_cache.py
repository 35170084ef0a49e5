"""What decoding keeps: keys and values of every layer, and where their tokens lie.

A slot holds one token of each row; slots fill from the left, the same ones in every row. A row that has no token for a
slot (left padding) marks it with segment 0, and nothing sees it.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from models import positions
from models.layers import compute_dtype
from models.pattern import plans

# What one layer keeps, by name: k and v [B, G, S, K]. Heads stand before slots, as the two products read them.
Entry = Mapping[str, Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys (turned by their positions) and values of the tokens so far, at most `capacity` a row.

    Each layer has arrays of its own, so that a step writes its slot in place. Where a RoPE scaling changes with the
    length, the keys of one length do not serve the next: nor do the hidden states behind them, from the second layer
    on. Such a cache also keeps the tokens, from which the model computes it anew when the frequencies change.
    """

    entries: tuple[Entry, ...]
    positions: Array  # int32 [B, S], in each token's own sequence
    segments: Array  # int32 [B, S], 0: padding or not yet written; else the sequence's number
    length: Array  # int32 [], slots written
    tokens: Array | None = None  # int32 [B, S], only where the frequencies depend on the length

    @classmethod
    def create(cls, config: ConfigDict, batch: int, capacity: int, dtype: DTypeLike | None = None) -> "KVCache":
        """Returns an empty cache.

        Args:
            config: a resolved config.model.
            batch: rows.
            capacity: slots, the most tokens a row can hold.
            dtype: of keys and values; None: the compute dtype.
        """
        kinds = {plan.position for plan in plans(config)}
        keep = any(positions.build(config, kind).uses_lengths for kind in kinds & {"rope", "p_rope"})
        dtype = compute_dtype(config) if dtype is None else dtype
        shape = (batch, config.num_kv_heads, capacity, config.head_dim)
        return cls.empty(shape, config.num_layers, dtype, keep_tokens=keep)

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], layers: int, dtype: DTypeLike, *, keep_tokens: bool) -> "KVCache":
        """Returns an empty cache of [B, G, S, K] keys and values for each layer, in arrays that share nothing."""
        batch, _, capacity, _ = shape

        def blank() -> Array:
            return jnp.zeros((batch, capacity), jnp.int32)

        return cls(
            entries=tuple({"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)} for _ in range(layers)),
            positions=blank(),
            segments=blank(),
            length=jnp.zeros((), jnp.int32),
            tokens=blank() if keep_tokens else None,
        )

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return self.positions.shape[1]

    @property
    def k(self) -> Array:
        """Keys of all layers, stacked to [L, B, S, G, K]; a copy, to look at."""
        return jnp.stack([entry["k"].swapaxes(1, 2) for entry in self.entries])

    @property
    def v(self) -> Array:
        """Values of all layers, stacked to [L, B, S, G, K]; a copy, to look at."""
        return jnp.stack([entry["v"].swapaxes(1, 2) for entry in self.entries])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.entries))

    def next_positions(self, count: int) -> Array:
        """Returns int32 [B, count], the positions after each row's last token."""
        last = jnp.max(jnp.where(self.segments != 0, self.positions, -1), axis=1, keepdims=True)
        return last + 1 + jnp.arange(count, dtype=jnp.int32)

    def room_for(self, count: int) -> None:
        """Refuses to write past the end.

        Inside `jax.jit` the length is not known and nothing can be refused: there `guard` spoils the result.

        Raises:
            ValueError: the cache cannot take `count` more slots.
        """
        if count > self.capacity:
            raise ValueError(f"KV cache: {count} tokens at once, of capacity {self.capacity}")
        if not isinstance(self.length, jax.core.Tracer) and int(self.length) + count > self.capacity:
            raise ValueError(f"KV cache is full: {int(self.length)} + {count} slots, of capacity {self.capacity}")

    def grown(self, capacity: int) -> "KVCache":
        """Returns the cache with empty slots added, up to `capacity`."""

        def pad(x: Array, axis: int) -> Array:
            widths = [(0, capacity - self.capacity if i == axis else 0) for i in range(x.ndim)]
            return jnp.pad(x, widths) if capacity > self.capacity else x

        return dataclasses.replace(
            self,
            entries=tuple({name: pad(x, 2) for name, x in entry.items()} for entry in self.entries),
            positions=pad(self.positions, 1),
            segments=pad(self.segments, 1),
            tokens=None if self.tokens is None else pad(self.tokens, 1),
        )

    def guard(self, x: Array) -> Array:
        """Returns x, or NaN everywhere if more was written than fits (a write past the end would move silently)."""
        return jnp.where(self.length <= self.capacity, x, jnp.nan)

    def place(self, tokens: Array, positions: Array, segments: Array) -> "KVCache":
        """Returns the cache with the next slots given to tokens [B, T], their keys and values not yet written.

        Raises:
            ValueError: see `room_for`.
        """
        self.room_for(tokens.shape[1])

        def write(whole: Array, part: Array) -> Array:
            part = jnp.broadcast_to(part.astype(jnp.int32), tokens.shape)
            return jax.lax.dynamic_update_slice(whole, part, (0, self.length))

        return dataclasses.replace(
            self,
            positions=write(self.positions, positions),
            segments=write(self.segments, segments),
            length=self.length + tokens.shape[1],
            tokens=None if self.tokens is None else write(self.tokens, tokens),
        )


def write(entry: Entry, k_BTGK: Array, v_BTGK: Array, at: Array | int) -> Entry:
    """Returns a layer's entry with keys and values of T tokens written from slot `at` on."""

    def put(whole: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_slice(whole, part.swapaxes(1, 2).astype(whole.dtype), (0, 0, at, 0))

    return {"k": put(entry["k"], k_BTGK), "v": put(entry["v"], v_BTGK)}


def read(entry: Entry, dtype: DTypeLike) -> tuple[Array, Array]:
    """Returns a layer's keys and values, all slots, as [B, S, G, K] in `dtype`."""
    return entry["k"].swapaxes(1, 2).astype(dtype), entry["v"].swapaxes(1, 2).astype(dtype)
