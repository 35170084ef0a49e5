"""Devices as a mesh, and the mesh axes over which each logical axis of an array is divided.

    data     rows of the batch; every device has all parameters
    fsdp     rows too, and parameters and optimizer state by width: each is gathered where it is used (ZeRO-3,
             arXiv 1910.02054)
    context  the tokens of a row; keys and values are gathered for each device's queries
    tensor   heads, MLP units and the vocabulary (Megatron-LM, arXiv 1909.08053)

Models name their axes (`models/axes.py`) and are otherwise independent of this. XLA's partitioner (GSPMD) does the
rest, except for the attention kernels, which run on each device's own rows and heads.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.rules import layers
from configs.rules import mesh as fields
from data.pipeline import WHOLE, Share
from models.axes import Rules
from models.metadata import declared_of

# Logical axes and their mesh axes. Parameters: embed, heads, kv_heads, mlp, vocab. Activations: batch,
# length, heads.
TABLE: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "length": ("context",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
}


def mesh_of(config: ConfigDict, devices: Sequence[Any] | None = None) -> Mesh | None:
    """Returns the mesh of a resolved config, or None for one device.

    Args:
        config: `config.mesh` is used; divided sizes must be divisible.
        devices: all available ones (also those of a described machine, for ahead-of-time compilation); None: JAX's own.
            One process takes the first of them if it needs fewer; several processes must take all.

    Raises:
        ConfigError: there are too few devices, or something is not divisible by them.
    """
    devices = jax.devices() if devices is None else list(devices)
    processes = len({device.process_index for device in devices})
    sizes = fields.sizes(config.mesh, len(devices))
    if result := fields.problems(config, sizes):
        raise ConfigError(result)
    requested = math.prod(sizes.values())
    if requested > len(devices) or (processes > 1 and requested != len(devices)):
        message = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        of = f" of {processes} processes" if processes > 1 else ""
        raise ConfigError(f"config.mesh: {message} takes {requested} devices, and there are {len(devices)}{of}")
    if requested == 1:
        return None
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices[:requested]
    )


def rules_of(config: ConfigDict, mesh: Mesh | None) -> Rules | None:
    """Returns the table from logical axes to a mesh for a resolved config; None for one device."""
    if mesh is None:
        return None
    table = dict(TABLE)
    if any(of.num_kv_heads % mesh.shape["tensor"] for of in layers.heads(config.model)):
        table["kv_heads"] = ()  # fewer KV heads than devices: each device has all of their matrices
    return Rules(mesh, tuple(table.items()))


def shardings(rules: Rules, tree: Any) -> Any:
    """Returns a tree like `tree` (parameters or optimizer state, arrays or shapes) with the sharding of each leaf.

    Statistics of a parameter in another shape, such as means of its rows, are replicated on every device.
    """

    def of(node: Any) -> Any:
        declared = declared_of(node) if isinstance(node, nnx.Variable) else None

        def leaf(x: Any) -> NamedSharding:
            axes = declared.axes if declared and tuple(x.shape) == declared.full_shape else ()
            return rules.sharding((*[None] * (len(x.shape) - len(axes)), *axes), x.shape)

        return jax.tree.map(leaf, node)

    return jax.tree.map(of, tree, is_leaf=lambda node: isinstance(node, nnx.Variable))


def placed(rules: Rules | None, shapes: Any) -> Any:
    """Returns shapes with shardings; unchanged without rules."""
    if rules is None:
        return shapes
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings(rules, shapes)
    )


def spread(rules: Rules | None, tree: Any) -> Any:
    """Returns replicated host arrays as arrays over the mesh; unchanged without rules."""
    if rules is None:
        return tree

    def put(x: Any, where: NamedSharding) -> jax.Array:
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])

    return jax.tree.map(put, tree, shardings(rules, tree))


@contextlib.contextmanager
def on_host(mesh: Mesh | None) -> Iterator[None]:
    """A context in which arrays are created in host memory if they will be divided: one device may not fit them all."""
    try:
        host = None if mesh is None else jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        host = None
    with jax.default_device(host) if host is not None else contextlib.nullcontext():
        yield


def whole(rules: Rules) -> NamedSharding:
    """Returns the sharding of an array that is replicated on every device."""
    return NamedSharding(rules.mesh, PartitionSpec())


def share(rules: Rules | None) -> Share:
    """Returns the rows of every batch that belong to this process's devices."""
    if rules is None:
        return WHOLE
    of = rules.shards("batch")
    where = rules.sharding(("batch",), (of,)).addressable_devices_indices_map((of,))
    return Share(tuple(sorted({(index[0].start or 0) for index in where.values() if index is not None})), of)


def global_batch(rules: Rules | None, batch: Mapping[str, np.ndarray], own: Share) -> Mapping[str, Any]:
    """Returns this process's rows of a batch as arrays [B, T] over the mesh; unchanged without rules.

    Args:
        rules: the table.
        batch: arrays [rows, T]: the concatenated parts of `own`.
        own: `share(rules)`.
    """
    if rules is None:
        return batch

    def put(local: np.ndarray) -> jax.Array:
        rows = local.shape[0] // len(own.parts)
        shape = (rows * own.of, *local.shape[1:])

        def part(index: Any) -> np.ndarray:
            at = own.parts.index((index[0].start or 0) // rows) * rows
            return local[at : at + rows, index[1]]

        return jax.make_array_from_callback(shape, rules.sharding(("batch", "length"), shape), part)

    return {name: put(x) for name, x in batch.items()}


def whole_batch(rules: Rules | None, batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Returns a replicated batch as arrays over the mesh, padded with rows of zeros to divide it."""
    if rules is None:
        return batch

    def put(x: np.ndarray) -> jax.Array:
        x = np.pad(x, [(0, -len(x) % rules.shards("batch")), *[(0, 0)] * (x.ndim - 1)])
        return jax.make_array_from_callback(x.shape, rules.sharding(("batch", "length"), x.shape), lambda at: x[at])

    return {name: put(np.asarray(x)) for name, x in batch.items()}


def described(mesh: Mesh | None) -> dict[str, int]:
    """Returns a mesh's axes and sizes, for run.json."""
    return dict.fromkeys(fields.AXES, 1) if mesh is None else {axis: int(size) for axis, size in mesh.shape.items()}
