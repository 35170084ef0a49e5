"""Block sizes of the fused kernel: from `tiles.json`, which `python -m bench.tune` writes, or defaults by platform."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax.numpy as jnp

TABLE = pathlib.Path(__file__).with_name("tiles.json")
LEAST = 16  # a product's sides are at least this on a GPU
LANES = 128  # a block of a TPU is a multiple of this
TPU_SIZES = (1024, 768, 512, 384, 256, 128)
PASSES = ("forward", "queries", "keys")


@dataclasses.dataclass(frozen=True)
class Size:
    """One pass: queries and keys a block; warps and pipeline stages are Triton's, unused on a TPU."""

    q: int
    k: int
    warps: int = 4
    stages: int = 2


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The forward pass, the backward pass by blocks of queries, and that by blocks of keys."""

    forward: Size
    queries: Size
    keys: Size


def width_of(head_dim: int) -> int:
    """Returns the head dim that a table's entry is for: the power of two at or above it, at least LEAST."""
    return max(LEAST, 1 << (head_dim - 1).bit_length())


def default(platform: str, dtype: Any, width: int) -> Tiles:
    """Returns sizes that fit in a chip's fast memory; not measured on any."""
    wide = jnp.dtype(dtype).itemsize > 2
    if platform == "tpu":
        size = Size(256 if width > 256 else 512, 256 if width > 256 else 512)
        return Tiles(size, size, size)
    if width > 128:
        size = Size(32, 32, 4, 1) if wide else Size(64, 32, 4, 1)
        return Tiles(size, size, size)
    if width > 64:
        size = Size(32, 32, 4, 1) if wide else Size(64, 64, 4, 1)
        return Tiles(Size(64, 32, 4, 1) if wide else Size(128, 64, 8, 2), size, size)
    size = Size(64, 32, 4, 1) if wide else Size(64, 64, 4, 2)
    return Tiles(Size(64, 64, 4, 1) if wide else Size(128, 64, 4, 2), size, size)


def tiles_for(platform: str, device: str, dtype: Any, head_dim: int, q_len: int, kv_len: int) -> Tiles:
    """Returns the sizes for a call: those measured on such a device, or the defaults; not longer than the lengths.

    Args:
        platform: gpu or tpu.
        device: its kind, as `jax.Device.device_kind` gives it; an empty string where none is here.
        dtype: of queries, keys and values.
        head_dim: the larger of K and V.
        q_len: T.
        kv_len: S.
    """
    width, name = width_of(head_dim), jnp.dtype(dtype).name
    found = measured().get((device, name, width)) or default(platform, dtype, width)
    return Tiles(*(fitted(platform, getattr(found, name), q_len, kv_len) for name in PASSES))


def fitted(platform: str, size: Size, q_len: int, kv_len: int) -> Size:
    """Returns a size that is no longer than it need be for the lengths."""

    def fit(size: int, length: int) -> int:
        if platform == "gpu":
            return min(size, max(LEAST, 1 << (length - 1).bit_length()))
        whole = -(-length // LANES) * LANES
        return next((one for one in TPU_SIZES if one <= size and whole % one == 0), LANES)

    return dataclasses.replace(size, q=fit(size.q, q_len), k=fit(size.k, kv_len))


@functools.cache
def measured() -> dict[tuple[str, str, int], Tiles]:
    """Returns the table's entries: (device kind, dtype, width) -> sizes."""
    if not TABLE.exists():
        return {}
    return read(json.loads(TABLE.read_text()))


def read(table: dict[str, Any]) -> dict[tuple[str, str, int], Tiles]:
    """Returns the entries of a table as `write` makes it.

    Raises:
        ValueError: it is no such table.
    """
    try:
        return {
            (entry["device"], entry["dtype"], int(entry["width"])): Tiles(*(Size(**entry[name]) for name in PASSES))
            for entry in table["entries"]
        }
    except (KeyError, TypeError) as problem:
        raise ValueError(f"not a table of block sizes: {problem}") from None
