"""What of JAX's and XLA's settings is the program's own, and which of the others can change a result. No JAX."""

import os
import sys
from collections.abc import Mapping
from typing import Any

# What draws random numbers, sets precision or stops programs from being compiled: the same whatever the environment
# says. These are the defaults of JAX 0.10 to 0.12.
PINNED: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_threefry_partitionable": True,
    "jax_default_prng_impl": "threefry2x32",
    "jax_enable_custom_prng": False,
    "jax_legacy_prng_key": "allow",
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_softmax_custom_jvp": False,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
}
TRUE, FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0", "")
# Settings of where programs run, what is kept and what is printed: no number depends on them.
HARMLESS = (
    "JAX_PLATFORM", "JAX_COMPILATION_CACHE", "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_RAISE_",
    "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS", "JAX_NUM_CPU_DEVICES",
    "JAX_CPU_COLLECTIVES", "JAX_CUDA_VISIBLE", "JAX_ROCM_VISIBLE", "JAX_DUMP", "JAX_LOG", "JAX_DEBUG_LOG",
    "JAX_EXPLAIN", "JAX_TRACEBACK", "JAX_INCLUDE_", "JAX_DISTRIBUTED_DEBUG", "JAX_CHECK_TRACER_LEAKS",
    "JAX_DEBUG_NANS", "JAX_DEBUG_INFS", "JAX_ENABLE_CHECKS", "XLA_PYTHON_CLIENT",
    "XLA_FLAGS --xla_force_host_platform_device_count", "XLA_FLAGS --xla_dump",
)  # fmt: skip


def pin() -> None:
    """Takes the variables of PINNED out of the environment, before JAX is imported; says so where one had an effect."""
    for name, value in PINNED.items():
        text = os.environ.pop(name.upper(), None)
        if text is not None and not same(text, value):
            print(f"{name.upper()}={text} has no effect: results would depend on it; it is {value}", file=sys.stderr)


def same(text: str, value: Any) -> bool:
    """Tells whether a variable's text means a value, as JAX reads it."""
    if isinstance(value, bool):
        return text.lower() in (TRUE if value else FALSE)
    return text.lower() == ("" if value is None else str(value).lower())


def relevant(settings: Any) -> dict[str, str]:
    """Returns those of run.json's `jax_settings` that may change a number; none where there are none.

    What is not declared in HARMLESS counts.
    """
    if not isinstance(settings, Mapping):
        return {}
    return {str(name): str(value) for name, value in settings.items() if not str(name).startswith(HARMLESS)}


def differing(before: Any, now: Any) -> list[str]:
    """Returns a phrase for each setting in which two runs differ that may change a number."""
    first, second = relevant(before), relevant(now)
    names = sorted({*first, *second})
    return [
        f"{name} is {first.get(name, 'unset')} there and {second.get(name, 'unset')} here"
        for name in names
        if first.get(name) != second.get(name)
    ]
