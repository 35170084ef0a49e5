"""The target of a plan: this machine's processors or GPU, or TPUs and GPUs that need not be here."""

from dataclasses import dataclass
from typing import Any

from configs.errors import ConfigError, UserError
from sweeps.launchers import resources
from training.devices import compile_only
from training.devices.chips import Chip, chip

LOCAL = ("cpu", "gpu")


@dataclass(frozen=True)
class Target:
    """Hardware to compile for.

    Attributes:
        name: as on the command line.
        platform: cpu, gpu or tpu.
        devices: JAX's; for hardware that is not here, its descriptions.
        capacity: usable bytes of one device; 0 if unknown.
    """

    name: str
    platform: str
    devices: tuple[Any, ...]
    capacity: int

    @property
    def kind(self) -> str:
        """The devices in words."""
        return f"{len(self.devices)} x {self.devices[0].device_kind}" if self.platform != "cpu" else "cpu"

    @property
    def chip(self) -> Chip | None:
        """The vendor's figures for one device; None for a CPU."""
        return None if self.platform == "cpu" else chip(self.devices[0].device_kind)


def check(name: str) -> None:
    """Checks that a target's name is valid.

    Raises:
        UserError: it is not.
    """
    compile_only.check(name, LOCAL)


def open_target(name: str) -> Target:
    """Returns a target, before any other device work.

    Raises:
        UserError: no such target, its compiler is not installed, or there is no GPU here.
    """
    platform = compile_only.check(name, LOCAL)
    import jax

    if name not in LOCAL:
        devices, capacity = compile_only.describe(name)
        return Target(name, platform, devices, capacity)
    if name == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return Target(name, "cpu", tuple(jax.devices()[:1]), resources.memory())
    if jax.default_backend() != "gpu":
        raise UserError(f"--target=gpu: JAX sees no GPU here, its platform is {jax.default_backend()}")
    stats = jax.devices()[0].memory_stats() or {}
    return Target(name, "gpu", tuple(jax.local_devices()), int(stats.get("bytes_limit", 0)))


def refusal(problem: Exception) -> str:
    """Returns the first line of a program's failure, for a plan."""
    if isinstance(problem, ConfigError):
        return str(problem)
    return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
