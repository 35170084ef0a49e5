"""Whether a training step can fit: available memory, and the minimum that a config needs. Imports no JAX."""

import math
from pathlib import Path

import psutil
from ml_collections import ConfigDict

from configs.rules import mesh as meshes
from models import counting
from training.step.optimizers import state_bytes

FLOAT32 = 4  # bytes per number of the parameters and of their gradients


def memory() -> int:
    """Returns the bytes of memory this process may use: the machine's, or fewer with a container's limit."""
    there = psutil.virtual_memory().total
    try:
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return there


def held(config: ConfigDict, platform: str, devices: int) -> int:
    """Returns the minimum bytes on a device for a resolved config's training step.

    Parameters and optimizer state; and the gradients, which exist completely at one time if they are clipped by their
    norm or summed over micro-batches. Devices of a mesh divide them along fsdp and tensor; simulated ones on a CPU
    share one memory. A vocabulary that only the data knows counts as one token.
    """
    model = config.model
    if model.vocab_size is None:
        model = model.copy_and_resolve_references()
        with model.ignore_type():
            model.vocab_size = 1
    whole = config.optimizer.clip_norm or config.data.micro_batches > 1
    arrays = 2 if whole else 1
    total = arrays * FLOAT32 * counting.parameters(model)["total"] + state_bytes(model, config.optimizer)
    if platform == "cpu":
        return total
    sizes = meshes.sizes(config.mesh, devices)
    return total // math.prod(sizes[axis] for axis in ("fsdp", "tensor"))
