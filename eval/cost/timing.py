"""A stopwatch for compiled functions: separate compilation, warm-up dropped, waiting for the device."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

WARM_UP = 2  # discarded calls: the first ones fill caches and allocate
SHORTEST = 0.05  # minimum seconds of a repeat; shorter calls are repeated within it, for the clock's resolution


def compile_timed(lowered: jax.stages.Lowered, options: dict[str, Any] | None = None) -> tuple[Any, float]:
    """Compiles a lowered program, with options of XLA; returns (compiled, seconds)."""
    start = time.perf_counter()
    compiled = lowered.compile(options)
    return compiled, time.perf_counter() - start


def measure(call: Callable[[Any], Any], state: Any, *, repeats: int, warm_up: int = WARM_UP) -> np.ndarray:
    """Times `state = call(state)`, which lets a training step donate its state.

    Args:
      call: one unit of work; the clock stops when its result is ready.
      state: of the first call.
      repeats: returned measurements, each the mean of as many calls as SHORTEST needs.
      warm_up: calls before the first measurement.

    Returns:
      Seconds per call, [repeats].
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    longest = 0.0
    for _ in range(max(warm_up, 1)):
        start = time.perf_counter()
        state = jax.block_until_ready(call(state))
        longest = time.perf_counter() - start
    calls = int(np.clip(np.ceil(SHORTEST / max(longest, 1e-9)), 1, 10_000))
    seconds = np.empty(repeats)
    for repeat in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            state = call(state)
        jax.block_until_ready(state)
        seconds[repeat] = (time.perf_counter() - start) / calls
    return seconds


def device() -> dict[str, Any]:
    """Returns the device of measurements, and this machine's cores that JAX could have used."""
    result = jax.devices()[0]
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "kind": result.device_kind,
        "platform": result.platform,
        "count": 1,
        "cores": os.cpu_count(),  # of the machine
        "affinity": here,  # cores that this process may run on
        "NPROC": os.environ.get("NPROC"),  # limits XLA's threads if it is set
        "load": [round(load, 2) for load in os.getloadavg()],  # over 1, 5 and 15 minutes: other load slows a CPU down
    }


def summary(seconds: np.ndarray, tokens: int, compile_seconds: float, **shape: Any) -> dict[str, Any]:
    """Returns measurements as a JSON entry: the median rate in tokens/s, its quartiles, the median seconds per call."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return {
        "tokens_per_second": float(tokens / middle),
        "spread": [float(tokens / high), float(tokens / low)],
        "seconds": float(middle),
        "repeats": len(seconds),
        "compile_seconds": float(compile_seconds),
        **shape,
    }
