"""Memory: by formula, as compiled, and as measured where the device counts."""

from typing import Any

import jax

from eval import programs
from eval.progress import Silent
from models import counting
from training import step as steps
from training.run import Run

FLOAT32 = 4  # bytes; parameters, gradients and AdamW's two moments are float32 whatever the compute dtype
COUNTED = "peak_bytes_in_use"


def evaluate(run: Run, progress: Silent) -> dict[str, Any]:
    """Returns eval/memory.json's content; all sizes in bytes.

    `formula` counts parameters, their gradients, AdamW's state and the KV cache of decode; `compiled` is XLA's own
    account of the three programs (peak: arguments, outputs and temporaries alive at once, donated buffers counted
    once); `measured` is the device's highest use so far in this process, None where it does not count.
    """
    shape = programs.shape(run.config)
    compiled = {}
    for name, lower in programs.LOWERED.items():
        progress.say(f"memory: compiling {name.replace('_', ' ')}")
        compiled[name] = analysis(lower(run.config).compile())
    return {
        "formula": formula(run),
        "compiled": compiled,
        "measured": measured(),
        "settings": {"shape": shape.settings},
    }


def formula(run: Run) -> dict[str, int]:
    """Returns the bytes that need no compiler to be known."""
    model = run.config.model
    shape = programs.shape(run.config)
    parameters = FLOAT32 * counting.parameters(model)["total"]
    element = programs.element_bytes(run.config)
    kept = counting.kv_cache_bytes(model, element, batch=shape.decode_batch_size, capacity=shape.capacity)
    return {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": optimizer_bytes(run),
        "kv_cache": sum(kept.values()),
        "kv_cache_scales": kept["scales"],
        "kv_bytes_per_token": counting.kv_bytes_per_token(model, element),
    }


def optimizer_bytes(run: Run) -> int:
    """Returns the size of the optimizer's state: two moments a parameter and its counters."""
    leaves = jax.tree.leaves(steps.abstract(run.config).opt_state)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def analysis(compiled: Any) -> dict[str, int] | None:
    """Returns XLA's account of a compiled program in bytes, None where the platform gives none."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    argument, output = found.argument_size_in_bytes, found.output_size_in_bytes
    temp, alias = found.temp_size_in_bytes, found.alias_size_in_bytes
    peak = argument + output + temp - alias
    return {"argument": argument, "output": output, "temp": temp, "alias": alias, "peak": peak}


def measured() -> dict[str, int] | None:
    """Returns the device's own counts in bytes, None where it has none (a CPU)."""
    found = jax.devices()[0].memory_stats()
    if not found:
        return None
    return {name: int(found[name]) for name in ("bytes_in_use", COUNTED, "bytes_limit") if name in found}
