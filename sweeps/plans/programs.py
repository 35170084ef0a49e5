"""The programs of an arm, compiled for a target: whether they fit, what they move, and where their cycles go."""

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from ml_collections import ConfigDict

from configs import fields
from configs.rules import mesh as meshes
from eval.cost import programs
from models import counting
from models.platform import compiling_for
from sweeps.plans import hlo
from sweeps.plans.roofline import Roofline
from sweeps.plans.targets import LOCAL, Target, refusal
from training.devices import compile_only
from training.devices.compile_only import compile_lowered, too_large
from training.step import train_step as steps
from training.step.mesh import mesh_of

Lowering = Callable[[ConfigDict, Target], jax.stages.Lowered]


@dataclass(frozen=True)
class Program:
    """One program of one arm on one device of a target.

    Attributes:
        memory: bytes: argument, output, temp, alias, and peak (simultaneously alive); empty if it does not fit.
        needed, available: bytes; 0 if unknown.
        error: why it does not compile, other than its size.
        kernel: its attention kernels; those whose expected custom call is absent are in `missing`.
        missing: requested kernels whose custom call is not in the compiled program.
        bytes_accessed: read and written, counting loops by their trips: XLA's own count, or, if it gives none (GPUs),
            the operands and results of every instruction outside a fusion.
        cycles: estimated, by part of the model, without Pallas kernels. Empty except on TPUs.
        kernels: attention kernels (Pallas, Triton, cuDNN) -> executions.
        collectives: [{kind, count, bytes}].
        roofline: the minimum time on one device by the chip's published rates; None if nothing is published.
    """

    memory: dict[str, int] = field(default_factory=dict)
    needed: int = 0
    available: int = 0
    error: str = ""
    kernel: str = ""
    missing: str = ""
    bytes_accessed: int = 0
    cycles: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    collectives: tuple[dict[str, Any], ...] = ()
    roofline: Roofline | None = None

    @property
    def fits(self) -> bool:
        """Whether one device's memory is enough, as far as known."""
        return not self.available or self.needed <= self.available

    def as_json(self) -> dict[str, Any]:
        """Returns all fields, and the verdict."""
        return {**asdict(self), "fits": self.fits and not self.error}


def identity(config: ConfigDict) -> str:
    """Returns the identity of an arm's programs; the learning rate, for example, is an argument and not part of it."""
    shapes = [config.data.batch_size, config.data.length, config.data.packing, config.data.weights.text > 0]
    return f"{steps.shaping(config)} {shapes} {fields.to_dict(config.mesh)} {fields.to_dict(config.eval.throughput)}"


def compiled(config: ConfigDict, target: Target, name: str) -> Program:
    """Compiles one program (a name of PROGRAMS) of a resolved config; records why one does not fit or compile."""
    try:
        with compiling_for(target.platform):
            lowered = PROGRAMS[name](config, target)
            kernel = programs.kernels_in(lowered)
            done = compile_lowered(lowered, target.platform)
    except Exception as problem:
        sizes = too_large(str(problem))
        if sizes is not None:
            return Program(needed=sizes[0], available=sizes[1])
        return Program(error=refusal(problem))
    memory = programs.analysis(done) or {}
    account = done.memory_analysis()
    if account is not None and target.platform == "tpu":
        # Arguments and temporaries are not all alive at once; this is what the compiler compared with the chip's
        # memory.
        memory["peak"] = int(account.peak_memory_in_bytes)
    counts = hlo.count(done.as_text() or "")
    accessed = round((done.cost_analysis() or {}).get("bytes accessed", 0.0) * counts.loops) or counts.moved
    absent = hlo.missing(kernel, counts.kernels, target.platform)
    return Program(
        memory=memory,
        needed=memory.get("peak", 0),
        available=target.capacity,
        kernel="+".join(core for core in kernel.split("+") if core not in absent),
        missing="+".join(absent),
        bytes_accessed=accessed,
        cycles=dict(counts.cycles.most_common()),
        kernels=dict(sorted(counts.kernels.items())),
        collectives=tuple(
            {"kind": kind, "count": often, "bytes": nbytes}
            for kind, (often, nbytes) in sorted(counts.collectives.items())
        ),
        roofline=Roofline.of(target.chip, FLOPS[name](config, target), accessed),
    )


def over_all(config: ConfigDict, target: Target) -> ConfigDict:
    """Returns the config with its rows divided over all chips of a target, if its mesh has one device."""
    sizes = meshes.sizes(config.mesh, len(target.devices))
    if len(target.devices) == 1 or target.name in LOCAL or math.prod(sizes.values()) > 1:
        return config
    changed = fields.from_dict(fields.to_dict(config))
    changed.mesh.data = -1
    return changed


def device_count(config: ConfigDict, target: Target) -> int:
    """Returns how many of a target's devices share one run."""
    return math.prod(meshes.sizes(over_all(config, target).mesh, len(target.devices)).values())


def _train_step(config: ConfigDict, target: Target) -> jax.stages.Lowered:
    config = over_all(config, target)
    mesh = mesh_of(config, target.devices)
    arguments = steps.arguments(config, mesh=mesh)
    placed = arguments if mesh is not None else _on(target, arguments)
    return compile_only.lower(steps.jitted(config, mesh), *placed, platform=target.platform)


def _decode(config: ConfigDict, target: Target) -> jax.stages.Lowered:
    """Decoding runs on a single device: each has its own rows, and nothing is sent."""
    shape, abstract = programs.shape(config), steps.abstract(config)
    cache = jax.eval_shape(lambda: programs.filled_cache(config))
    tokens = jax.ShapeDtypeStruct((shape.decode_batch_size,), jnp.int32)
    # A separate function: a trace for another platform cannot be reused.
    fresh = jax.jit(inspect.unwrap(programs.decode_steps), static_argnums=(0, 1), donate_argnums=3)
    placed = _on(target, (abstract.params, cache, tokens))
    return compile_only.lower(fresh, abstract.graphdef, shape.new_tokens, *placed, platform=target.platform)


def _on(target: Target, tree: Any) -> Any:
    """Returns shapes placed on the target's first device; shapes over several devices carry their own sharding."""
    where = SingleDeviceSharding(target.devices[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)


def _train_flops(config: ConfigDict, target: Target) -> float:
    """Returns the FLOPs of one training step on one device, by formula."""
    tokens = config.data.batch_size * config.data.length
    return counting.flops_per_token(config.model, config.data.length)["value"] * tokens / device_count(config, target)


def _decode_flops(config: ConfigDict, target: Target) -> float:
    """Returns the FLOPs of decoding all new tokens: a forward pass is a third of a training step."""
    shape = programs.shape(config)
    tokens = shape.decode_batch_size * shape.new_tokens
    return counting.flops_per_token(config.model, shape.capacity)["value"] / 3 * tokens


PROGRAMS: dict[str, Lowering] = {"train_step": _train_step, "decode": _decode}
FLOPS: dict[str, Callable[[ConfigDict, Target], float]] = {"train_step": _train_flops, "decode": _decode_flops}
