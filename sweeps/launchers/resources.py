"""The number of workers on a machine, and their resources: a share of the cores, or one device."""

import functools
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from configs.errors import UserError
from sweeps.execution.worker import Place
from training.devices.memory import memory as memory
from training.runtime import startup

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin", "libtpu")
WORKER_MEMORY = 1.5e9  # minimum bytes per worker on the CPU
THREADS = ("NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
PROBE = (
    "import jax; found = jax.local_devices(); limit = (found[0].memory_stats() or {}).get('bytes_limit', 0); "
    "print(jax.default_backend(), len(found), limit)"
)


@dataclass(frozen=True)
class Machine:
    """JAX's hardware here: `cpu`, `gpu` or `tpu`; its devices; the cores this process may use.

    `memory`: usable bytes of one device; 0 if unknown.
    """

    platform: str
    devices: int
    cores: int
    memory: int = 0


@functools.cache
def machine() -> Machine:
    """Returns the hardware, without starting JAX in this process (which would take the devices' memory).

    Raises:
        UserError: JAX does not start here.
    """
    startup.flags()
    platforms = os.environ.get("JAX_PLATFORMS", "").lower()
    alone = platforms == "" and not any(importlib.util.find_spec(name) for name in PLUGINS)
    if platforms == "cpu" or alone:
        return Machine("cpu", 1, cores(), memory())
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=env)
    if probe.returncode:
        raise UserError(startup.refused(probe.stderr))
    platform, devices, limit = probe.stdout.split()[-3:]
    known = memory() if platform == "cpu" else int(limit)
    return Machine({"cuda": "gpu", "rocm": "gpu"}.get(platform, platform), int(devices), cores(), known)


def cores() -> int:
    """Returns the cores this process may use: its affinity, or fewer with a container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(bound, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return bound


def places(here: Machine, workers: int | None, runs: int, logs: Path) -> list[Place]:
    """Returns a place for each worker.

    On the CPU every worker gets the same number of threads, so that the runs' speeds are comparable and the workers
    together use no more than the cores; on GPUs each worker sees one device; a TPU's chips belong to one process.

    Args:
        here: the machine.
        workers: how many; None: as many as the machine allows and the runs need.
        runs: number of runs to do.
        logs: a folder for the workers' output outside of runs.
    """
    number = workers or max(1, min(runs, _most(here)))
    if here.platform == "tpu" and number > 1:
        raise UserError(f"--workers={number}: a TPU's chips belong to one process; must be 1")
    return [Place(i, _environment(here, i, number), str(logs / f"worker{i}.txt")) for i in range(number)]


def _most(here: Machine) -> int:
    if here.platform == "gpu":
        return here.devices
    if here.platform == "tpu":
        return 1
    return max(1, min(here.cores, int(psutil.virtual_memory().available / WORKER_MEMORY)))


def _environment(here: Machine, index: int, number: int) -> dict[str, str]:
    if here.platform == "gpu":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        ids = visible.split(",") if visible else [str(i) for i in range(here.devices)]
        env = {"CUDA_VISIBLE_DEVICES": ids[index % len(ids)]}
        if number > len(ids):  # several workers share a device
            env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / -(-number // len(ids)):.3f}"
        return env
    if here.platform == "tpu":
        return {}
    # XLA sizes its thread pools by NPROC. Pinning workers to cores does the same, but leaves cores idle at the end.
    return dict.fromkeys(THREADS, str(max(1, here.cores // number)))


def shared(here: Machine, number: int) -> bool:
    """Returns whether workers share hardware, so that one's timing is disturbed by another's work."""
    return number > 1 and (here.platform == "cpu" or number > here.devices)
