"""The largest batch and length whose programs fit a given memory, by compiling them; nothing runs."""

from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from eval.cost import programs
from eval.progress import Quiet
from models.declared import positions

GIB = 2**30
MOST = 1 << 24  # rows or tokens, the end of the search
FINE = 16  # the answer is exact, or for large numbers to 1 part in this many
PROGRAMS = {"train_step": ("batch_size", "length"), "decode": ("decode_batch_size", "length")}


def largest_fits(config: ConfigDict, limit: float, progress: Quiet) -> dict[str, dict[str, Any]]:
    """Returns the largest batch at the set length and the largest length at the set batch, for train step and decode.

    Args:
        config: resolved; its other shapes are those of `eval.throughput`.
        limit: bytes that the compiled program may take at once.
        progress: shows each program that is compiled.

    Returns:
        program -> {"batch", "length"} -> `largest` (0: not even one), its `peak` in bytes, the first `too_large` one
            that was tried, and its peak (None if the compiler itself refused it).
    """
    results: dict[str, dict[str, Any]] = {}
    shape = programs.shape(config)
    for name, (batch, length) in PROGRAMS.items():
        of_batch = shape.decode_batch_size if name == "decode" else shape.batch_size
        results[name] = {}
        for what, field, start in (("batch", batch, of_batch), ("length", length, shape.length)):

            def peak(size: int, name: str = name, field: str = field, what: str = what) -> int | None:
                progress.say(f"memory: does {name.replace('_', ' ')} fit with {what} {size:,}?")
                return compiled_peak(_with(config, field, size), name)

            most = _table(config) - shape.new_tokens if what == "length" else MOST
            results[name][what] = search(peak, start, limit, unit=_unit(config, name, what), most=most)
    return results


def compiled_peak(config: ConfigDict, name: str) -> int | None:
    """Returns the peak bytes of a program of `programs.LOWERED`, None if it is too large to compile."""
    try:
        result = programs.analysis(programs.LOWERED[name](config).compile())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    return 0 if result is None else result["peak"]


def search(
    peak: Callable[[int], int | None], start: int, limit: float, *, unit: int = 1, most: int = MOST
) -> dict[str, Any]:
    """Returns the largest multiple of `unit` whose peak is within the limit.

    Peaks grow with the size almost linearly: the next guess is where a line through the two known ends meets the limit.

    Args:
        peak: from a size to bytes, None if it cannot be compiled.
        start: the first size.
        limit: bytes.
        unit: sizes are multiples of it.
        most: no size is larger.
    """
    low, high = 0, most // unit + 1  # in units: fits, does not
    sizes: dict[int, int | None] = {}
    guess = max(1, min(start // unit, most // unit))
    while high - low > max(1, low // FINE):
        sizes[guess] = at = peak(guess * unit)
        if at is not None and at <= limit:
            low = guess
        else:
            high = guess
        guess = _next(low, high, limit, sizes, bounded=high in sizes)
    return {
        "largest": low * unit,
        "peak": sizes.get(low),
        "too_large": high * unit if high in sizes else None,
        "too_large_peak": sizes.get(high),
    }


def _next(low: int, high: int, limit: float, sizes: dict[int, int | None], *, bounded: bool) -> int:
    if not bounded:
        return min(2 * max(low, 1), high - 1) if low else 1
    below, above = sizes.get(low), sizes[high]
    if below is None or above is None or above <= below:
        return max(low + 1, min((low + high) // 2, high - 1))
    line = low + (limit - below) / (above - below) * (high - low)
    inner = max(1, (high - low) // 8)  # a line that misses still removes an eighth
    return max(low + 1, min(high - 1, max(low + inner, min(high - inner, round(line)))))


def _with(config: ConfigDict, field: str, size: int) -> ConfigDict:
    changed = config.copy_and_resolve_references()
    changed.eval.throughput[field] = size
    return changed


def _unit(config: ConfigDict, name: str, what: str) -> int:
    return config.data.micro_batches if (name, what) == ("train_step", "batch") else 1


def _table(config: ConfigDict) -> int:
    """Returns the longest sequence that the positions support."""
    result = positions.reach(config.model)
    return MOST if result is None else result[0]
