"""Programs for TPUs and GPUs that are not here: their device descriptions in JAX, and compiling for them.

`v5e:2x2` is a TPU generation and a chip topology, `h100:8` a GPU and how many of them one host has. libtpu (the extra
`tpu`) compiles for the former, JAX's CUDA plugin (the extra `plan-gpu`) for the latter; neither needs the hardware.
Everything specific to JAX about it is in this file.
"""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from configs.errors import UserError, nearest
from training.devices.gpus import GPUS, MOST

GENERATIONS = ("v5e", "v6e", "v5p", "v4")
SHAPE = r"(\d{1,2}(?:x\d{1,2}){1,2})"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
NO_LIBTPU = "libtpu compiles for TPUs and is not installed: make setup EXTRAS=dev,tpu (or pip install 'jax[tpu]')"
NO_CUDA = (
    "JAX's CUDA plugin compiles for GPUs and is not installed: make setup EXTRAS=dev,plan-gpu (4.4 GB; "
    "or pip install 'jax[cuda13]')"
)
NO_TILES = "Couldn't find output tile sizes"
CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
ANY_GPU = "NVIDIA H100"
DEFAULT_CUDNN = (9, 10, 0)  # if no cuDNN is installed beside the plugin

# XLA's messages for a program that is too large; both numbers are of one device.
_TOO_LARGE = (
    re.compile(
        r"memory required for HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)"
    ),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) \w+"),
)


def check(name: str, local: tuple[str, ...] = ()) -> str:
    """Returns the platform of a target's name: tpu or gpu, or the name itself if it is one of `local`.

    Raises:
        UserError: it is not a target.
    """
    if name in local:
        return name
    if re.fullmatch(rf"({'|'.join(GENERATIONS)}):{SHAPE}", name):
        return "tpu"
    if (given := re.fullmatch(rf"({'|'.join(GPUS)}):(\d+)", name)) is not None and 1 <= int(given[2]) <= MOST:
        return "gpu"
    kind = name.partition(":")[0]
    hint = nearest(kind, (*local, *GENERATIONS, *GPUS))
    here = f"{', '.join(local)} (this machine's), " if local else ""
    raise UserError(
        f"--target={name}: must be {here}TPUs such as {', '.join(f'{one}:1x1' for one in GENERATIONS)} or v5e:2x2, "
        f"or 1 to {MOST} GPUs of one host such as {', '.join(f'{one}:1' for one in GPUS)} or h100:8{hint}"
    )


def describe(name: str) -> tuple[tuple[Any, ...], int]:
    """Returns the descriptions of a target's devices, and the usable bytes of one.

    JAX is set to the CPU: the machine's own accelerator is not needed, and not taken.

    Raises:
        UserError: its compiler is not installed, or has no such devices.
    """
    import jax

    tpu = check(name) == "tpu"
    jax.config.update("jax_platforms", "cpu")
    # The cache could write programs for devices that are not here, but not read them, and warns about each.
    jax.config.update("jax_enable_compilation_cache", False)
    if tpu:
        devices = _tpus(name)
        return devices, _available(devices[0])
    kind, _, number = name.partition(":")
    return _gpus(kind, int(number)), GPUS[kind].memory


def lower(function: Any, *arguments: Any, platform: str) -> Any:
    """Returns a jitted function lowered for a platform (cpu, gpu, tpu), on whatever this process runs.

    `function.lower` alone would require a device of the platform if the arguments are not placed on one.
    """
    with _gpu_described() if platform == "gpu" else nullcontext():
        return function.trace(*arguments).lower(lowering_platforms=("cuda" if platform == "gpu" else platform,))


def compile_lowered(lowered: Any, platform: str) -> Any:
    """Returns a lowered program compiled.

    Without a GPU to try them on, XLA generates matmuls in Triton by heuristics, and finds no tiles for some whose
    number of rows is not a multiple of 16 (JAX 0.10.2). Those programs are compiled again with cuBLAS for all matmuls.
    """
    try:
        return lowered.compile()
    except Exception as problem:
        if platform != "gpu" or NO_TILES not in str(problem):
            raise
        return lowered.compile({"xla_gpu_enable_triton_gemm": False})


def _gpu_described() -> Any:
    """Returns a context that names a GPU to Pallas, which from JAX 0.12 on lowers through Triton for a known one alone.

    The name decides features of the language, such as which precisions a matmul takes, and no sizes.
    """
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    device = AbstractDevice(device_kind=ANY_GPU, num_cores=None, platform="gpu")
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def too_large(message: str) -> tuple[int, int] | None:
    """Returns (bytes needed, bytes available) from XLA's RESOURCE_EXHAUSTED; None if it has another message."""
    for pattern in _TOO_LARGE:
        if (result := pattern.search(message)) is not None:
            needed, unit, available, other = result.groups()
            return round(float(needed) * UNITS[unit]), round(float(available) * UNITS[other])
    return None


def _tpus(name: str) -> tuple[Any, ...]:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--target={name}: {NO_LIBTPU}")
    # Several processes may compile at a time, and no server is queried about the TPU type.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    sizes = [int(size) for size in name.partition(":")[2].split("x")]
    # Four chips share a host by default; fewer cannot be divided that way.
    bounds = {} if all(size % 2 == 0 for size in sizes[:2]) else {"chips_per_host_bounds": (*sizes, 1)[:3]}
    return _described(name, name, platform="tpu", **bounds)


def _gpus(kind: str, number: int) -> tuple[Any, ...]:
    if not any(importlib.util.find_spec(name) for name in CUDA_PLUGINS):
        raise UserError(f"--target={kind}:{number}: {NO_CUDA}")
    text = GPUS[kind].description(_cudnn())
    return _described(f"{kind}:{number}", kind, platform="cuda", topology=f"1x{number}x1", target_config=text)


def _cudnn() -> tuple[int, int, int]:
    """Returns the version of the cuDNN installed beside the plugin."""
    for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            major, minor, patch = (int(part) for part in importlib.metadata.version(name).split(".")[:3])
        except importlib.metadata.PackageNotFoundError:
            continue
        return major, minor, patch
    return DEFAULT_CUDNN


def _described(target: str, name: str, **options: Any) -> tuple[Any, ...]:
    from jax.experimental import topologies

    try:
        with _quiet():
            return tuple(topologies.get_topology_desc(name, **options).devices)
    except Exception as problem:
        raise UserError(f"--target={target}: {(str(problem).splitlines() or [type(problem).__name__])[0]}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Redirects libtpu's warnings about missing hardware from the terminal to the process's standard error."""
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)


def _available(device: Any) -> int:
    """Returns the usable bytes of a described TPU, from its message for a program that is too large."""
    import jax
    import jax.numpy as jnp

    huge = jax.ShapeDtypeStruct((2**20, 2**20), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(device))
    try:
        lower(jax.jit(lambda x: x + 1), huge, platform="tpu").compile()
    except Exception as problem:
        result = too_large(str(problem))
        if result is None:
            raise
        return result[1]
    return 0
