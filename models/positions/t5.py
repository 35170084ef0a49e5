"""T5's relative bias: one learned number for each head and bucket of distances (Raffel et al., arXiv 1910.10683)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from ml_collections import ConfigDict

from models.positions.head_bias import HeadBias, Scalars
from models.positions.layered import parameters
from models.positions.scheme import Scheme


def buckets_of(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket, int32, of each distance >= 0, as T5's code rounds it (float32).

    The first half of the buckets holds one distance each, the others widen logarithmically up to `max_distance`; all
    beyond share the last.
    """
    exact = buckets // 2
    distances = np.asarray(distances)
    growth = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    share = growth / np.float32(np.log(max_distance / exact))
    wide = exact + (share * np.float32(buckets - exact)).astype(np.int32)
    return np.where(distances < exact, distances, np.minimum(wide, buckets - 1)).astype(np.int32)


def bidirectional_buckets_of(relative: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each relative position, key - query: half the buckets for each direction, keys after first.

    T5's encoder; a decoder, and so every model here, has `buckets_of` the distance alone.
    """
    relative = np.asarray(relative)
    half = buckets // 2
    return np.where(relative > 0, half, 0).astype(np.int32) + buckets_of(np.abs(relative), half, max_distance)


class T5(Scheme, nnx.Module):
    """Adds table[bucket(i - j), h] to the scores; one table [buckets, H] for all layers, as in T5.

    T5 itself does not scale q.k by 1/sqrt(K) (its initialisation does); here `attention.scale` is its own switch.
    """

    places: ClassVar[frozenset[str]] = frozenset({"bias"})

    def __init__(self, parameters: dict[str, nnx.Param], *, buckets: int, max_distance: int) -> None:
        self.buckets, self.max_distance = buckets, max_distance
        self.bias_table = parameters["bias_table"]

    def bias(self) -> HeadBias:
        """Returns the function of query positions [B|1, T] and key positions [B|1, S] that is added: [B|1, H, T, S]."""
        table_NH = self.bias_table[...]
        # From max_distance on all is one bucket. Looked up, so that every platform rounds the logarithm the same.
        bucket_of = buckets_of(np.arange(self.max_distance + 1), self.buckets, self.max_distance)

        def added(q_positions: Array, kv_positions: Array) -> Array:
            distance = q_positions[:, :, None] - kv_positions[:, None, :]
            bucket = jnp.take(jnp.asarray(bucket_of), jnp.clip(distance, 0, self.max_distance))
            # A product with one-hot rows: its transpose is a product too, where that of a lookup is a slow scatter.
            hot_BTSN = (bucket[..., None] == jnp.arange(self.buckets)).astype(jnp.float32)
            return jnp.einsum("btsn,nh->bhts", hot_BTSN, table_NH, precision=lax.Precision.HIGHEST)

        def distance_of(scalars: Scalars, q: Array, k: Array) -> Array:
            return jnp.clip(q - k, 0, self.max_distance).astype(jnp.float32)

        def in_bucket(row: Scalars, distance: Array) -> Array:
            return jnp.where((distance >= row["low"]) & (distance < row["high"]), row["value"], 0.0)

        def active(row: Scalars, least: Array, largest: Array) -> Array:
            return (row["low"] <= largest) & (row["high"] > least)

        # Bucket n holds the distances low[n] .. high[n] - 1; a bucket between two others may hold none.
        edges = np.searchsorted(bucket_of, np.arange(self.buckets + 1)).astype(np.float32)
        low_NH, high_NH = (jnp.broadcast_to(x[:, None], table_NH.shape) for x in (edges[:-1], edges[1:]))
        rows = {"value": table_NH, "low": low_NH, "high": high_NH}
        constant = frozenset({"low", "high"})
        return HeadBias(distance_of, rows=rows, row=in_bucket, active=active, constant=constant, whole=added)


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> T5:
    """Builds the table from config.model; its standard deviation is 1/sqrt(width) where `init_std` is unset (T5's)."""
    t5 = config.position.t5
    return T5(parameters(config, "t5", rngs), buckets=t5.buckets, max_distance=t5.max_distance)
