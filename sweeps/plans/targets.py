"""What a sweep is planned for: this machine's processors or GPU, or TPUs that are compiled for without having any.

`v5e:2x2` is a generation and how its chips are laid out. libtpu (the extra `tpu`) compiles for them on any machine.
"""

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from configs.errors import ConfigError, UserError, nearest
from sweeps.launchers import resources

GENERATIONS = ("v5e", "v6e", "v5p", "v4")
LOCAL = ("cpu", "gpu")
SHAPE = r"(\d{1,2}(?:x\d{1,2}){1,2})"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MISSING = "libtpu compiles for TPUs and is not installed: make setup EXTRAS=dev,tpu (or pip install 'jax[tpu]')"

# What XLA says of a program that is too large; both numbers are of one device.
_TOO_LARGE = (
    re.compile(
        r"memory required for HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)"
    ),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) \w+"),
)


@dataclass(frozen=True)
class Target:
    """Hardware to compile for.

    Attributes:
        name: as given.
        platform: cpu, gpu or tpu.
        devices: JAX's; of TPUs that are not there, their descriptions.
        capacity: bytes of memory that programs may use of one device; 0 where nothing tells.
    """

    name: str
    platform: str
    devices: tuple[Any, ...]
    capacity: int

    @property
    def kind(self) -> str:
        """The devices in words."""
        return f"{len(self.devices)} x {self.devices[0].device_kind}" if self.platform != "cpu" else "cpu"


def check(name: str) -> None:
    """Makes sure that a target's name is one.

    Raises:
        UserError: it is not.
    """
    if name in LOCAL or re.fullmatch(rf"({'|'.join(GENERATIONS)}):{SHAPE}", name):
        return
    generation = name.partition(":")[0]
    hint = nearest(generation, (*LOCAL, *GENERATIONS))
    chips = ", ".join(f"{one}:1x1" for one in GENERATIONS)
    raise UserError(f"--target={name}: must be cpu, gpu (this machine's), or TPUs such as {chips} or v5e:2x2{hint}")


def open_target(name: str) -> Target:
    """Returns a target, before any other device work.

    Raises:
        UserError: no such target, no libtpu, a layout that the generation does not have, or no GPU here.
    """
    check(name)
    import jax

    if name not in LOCAL:
        jax.config.update("jax_platforms", "cpu")  # the machine's own accelerator is not needed, and not taken
        devices = _described(name)
        # It could write programs of devices that are not here, but not read them, and warns of each.
        jax.config.update("jax_enable_compilation_cache", False)
        return Target(name, "tpu", devices, _available(devices[0]))
    if name == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return Target(name, "cpu", tuple(jax.devices()[:1]), resources.memory())
    if jax.default_backend() != "gpu":
        raise UserError(f"--target=gpu: JAX sees no GPU here, its platform is {jax.default_backend()}")
    stats = jax.devices()[0].memory_stats() or {}
    return Target(name, "gpu", tuple(jax.local_devices()), int(stats.get("bytes_limit", 0)))


def _described(name: str) -> tuple[Any, ...]:
    """Returns the descriptions of TPUs.

    Raises:
        UserError: libtpu is missing, or has no such TPUs.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--target={name}: {MISSING}")
    from jax.experimental import topologies

    # Several processes may compile at a time, and nobody is asked which TPU this is.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    sizes = [int(size) for size in name.partition(":")[2].split("x")]
    # Four chips share a host by default, which fewer cannot be divided into.
    bounds = {} if all(size % 2 == 0 for size in sizes[:2]) else {"chips_per_host_bounds": (*sizes, 1)[:3]}
    try:
        with _quiet():
            return tuple(topologies.get_topology_desc(name, platform="tpu", **bounds).devices)
    except Exception as problem:
        raise UserError(f"--target={name}: {(str(problem).splitlines() or [type(problem).__name__])[0]}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps libtpu's own warnings of missing hardware from the terminal; they go to the process's standard error."""
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)


def _available(device: Any) -> int:
    """Returns the bytes that programs may use of a described chip: what it answers to a program that is too large."""
    import jax
    import jax.numpy as jnp

    huge = jax.ShapeDtypeStruct((2**20, 2**20), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    except Exception as problem:
        found = too_large(str(problem))
        if found is None:
            raise
        return found[1]
    return 0


def too_large(message: str) -> tuple[int, int] | None:
    """Returns (bytes needed, bytes there are) from XLA's RESOURCE_EXHAUSTED; None: it says something else."""
    for pattern in _TOO_LARGE:
        if (found := pattern.search(message)) is not None:
            needed, unit, available, other = found.groups()
            return round(float(needed) * UNITS[unit]), round(float(available) * UNITS[other])
    return None


def refusal(problem: Exception) -> str:
    """Returns the first line of what a program failed with, as a plan tells it."""
    if isinstance(problem, ConfigError):
        return str(problem)
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
