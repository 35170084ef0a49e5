"""Whether a training step can fit at all: the memory there is, and the least that a config needs. Imports no JAX."""

import math
from pathlib import Path

import psutil
from ml_collections import ConfigDict

from configs.rules import mesh as meshes
from models import counting
from training.step.optimizers import state_bytes

FLOAT32 = 4  # bytes of a number of the parameters and of their gradients


def memory() -> int:
    """Returns the bytes of memory this process may use: the machine's, or fewer under a container's limit."""
    there = psutil.virtual_memory().total
    try:
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return there


def held(config: ConfigDict, platform: str, devices: int) -> int:
    """Returns the least bytes that a device must hold for a resolved config's training step.

    Parameters and the optimizer's state; and the gradients, which are whole at one time where they are clipped by their
    norm or summed over micro-batches. Devices of a mesh divide them along fsdp and tensor; simulated ones on a CPU are
    in one memory. A vocabulary that only the data know counts as one token.
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
