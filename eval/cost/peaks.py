"""The device's peak rates, measured here: a matmul in the run's dtype, and a copy."""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp

from eval.cost.timing import compile_timed, measure
from training.devices.chips import chip

SIDE = 512  # of the first matrix; doubled while a matmul takes less than LONG
LARGEST = 16384
LONG = 0.02  # seconds
COPIED = 256 << 20  # bytes of the array that is copied: larger than caches


@functools.cache
def peaks(dtype: str, *, side: int = SIDE, copied: int = COPIED) -> dict[str, Any]:
    """Returns the device's measured peaks, with the published ones if available.

    `flops` is the best rate of [n, n] x [n, n] matmuls over increasing n, FLOP/s; `bandwidth` that of a copy, in
    bytes/s read and written. Each is the fastest of its repeats: the best that other load and clock rates allow.

    Args:
        dtype: of the matmul.
        side: the first n.
        copied: bytes of the array that is copied.
    """
    result = chip(jax.devices()[0].device_kind)
    return {
        "dtype": dtype,
        **_product(dtype, side),
        "bandwidth": _copy(copied),
        "copied_bytes": copied,
        "published": None if result is None else asdict(result),
    }


def fastest(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns the seconds of a compiled function's fastest call of five."""
    compiled, _ = compile_timed(jax.jit(function).lower(*arguments))
    return float(measure(lambda _: compiled(*arguments), None, repeats=5).min())


def _product(dtype: str, side: int) -> dict[str, Any]:
    best, at, size = 0.0, side, side
    while size <= LARGEST:
        # Random numbers: some devices clock higher on zeros.
        a, b = (jax.random.normal(jax.random.key(n), (size, size), jnp.dtype(dtype)) for n in (0, 1))
        seconds = fastest(jnp.matmul, a, b)
        rate = 2 * size**3 / seconds
        best, at = (rate, size) if rate > best else (best, at)
        if seconds > LONG:
            break
        size *= 2
    return {"flops": best, "product_side": at}


def _copy(nbytes: int) -> float:
    x = jnp.ones(nbytes // 4, jnp.float32)
    return 2 * x.nbytes / fastest(jnp.negative, x)  # one pass that reads and writes; XLA would eliminate a plain copy
