"""What is allowed of the mesh: how many devices, and what they divide."""

import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.rules import layers

AXES = ("data", "fsdp", "context", "tensor")
KV_HEADS = ("replicate", "refuse")


def sizes(mesh: ConfigDict, devices: int) -> dict[str, int]:
    """Returns the devices along each axis of a config.mesh; -1 becomes what the others leave of `devices`."""
    results = {axis: mesh[axis] for axis in AXES}
    known = math.prod(size for size in results.values() if size > 0)
    return {axis: max(1, devices // known) if size == -1 else size for axis, size in results.items()}


def problems(config: ConfigDict, devices: Mapping[str, int] | None = None) -> list[str]:
    """Returns what is wrong with a config's mesh, a line each; the fields by themselves must be sound.

    Args:
        config: resolved or not; what is unset and not known yet is not judged.
        devices: along each axis, where -1 is known; None: as the config says, -1 not judged.
    """
    mesh = config.mesh
    if sum(mesh[axis] == -1 for axis in AXES) > 1:
        return [f"mesh: one axis at most may be -1 (the devices that the others leave), not {_told(mesh)}"]
    size = {axis: mesh[axis] for axis in AXES} if devices is None else dict(devices)
    size = {axis: 1 if n == -1 else n for axis, n in size.items()}
    return [*_model(config, size), *_rows(config, size)]


def _told(mesh: ConfigDict) -> str:
    return ", ".join(f"{axis} = {mesh[axis]}" for axis in AXES)


def _model(config: ConfigDict, size: Mapping[str, int]) -> list[str]:
    model, tensor, result = config.model, size["tensor"], []
    every = {of[:2] for of in layers.heads(model)}
    divided: list[tuple[str, str, Any]] = [
        ("tensor", "model.num_heads", heads) for heads in sorted({h for h, _ in every})
    ]
    divided += [("tensor", "model.mlp_width", model.mlp_width), ("fsdp", "model.width", model.width)]
    for axis, name, value in divided:
        if value is not None and value % size[axis]:
            result.append(f"mesh.{axis} = {size[axis]}: must divide {name} = {value}")
    if size["context"] > 1 and model.loss_block:
        result.append(
            f"model.loss_block = {model.loss_block}: must be 0 or unset where devices share the tokens of a row "
            f"(mesh.context = {size['context']})"
        )
    uneven = [groups for groups in sorted({g for _, g in every}) if groups % tensor]
    if config.mesh.kv_heads == "refuse" and uneven:
        groups = uneven[0]
        result.append(
            f"mesh.tensor = {tensor}: must divide model.num_kv_heads = {groups}, or set mesh.kv_heads = 'replicate', "
            "which gives every device the KV heads that it reads"
        )
    return result


def _rows(config: ConfigDict, size: Mapping[str, int]) -> list[str]:
    data, result = config.data, []
    rows, context = size["data"] * size["fsdp"], size["context"]
    micro = data.micro_batches
    batches = [("data.batch_size", data.batch_size), ("data.length", data.length)]
    for index, stage in enumerate(data.curriculum):
        given = [name for name in ("batch_size", "length") if name in stage]
        batches += [(f"data.curriculum[{index}].{name}", stage[name]) for name in given]
    for name, value in batches:
        if name.endswith("batch_size") and value % (rows * micro):
            parts = "mesh.data x mesh.fsdp" + (" x data.micro_batches" if micro > 1 else "")
            result.append(f"{name} = {value}: must be a multiple of {parts} = {rows * micro}")
        if name.endswith("length") and value % context:
            result.append(f"{name} = {value}: must be a multiple of mesh.context = {context}")
    return result
