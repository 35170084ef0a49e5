"""Which runs may train in one program: those whose configs differ in what a step takes as numbers. No JAX."""

import json
from typing import Any

from ml_collections import ConfigDict

from configs import fields


def key(config: ConfigDict) -> str | None:
    """Returns what runs of one program have in common; None: a run that must train by itself.

    Runs decay or they do not: the optimizer's state has another form. A budget in seconds would count those of the
    others; a mesh has its own programs, and so has each stage of a window that grows; parameters from elsewhere are
    left to runs by themselves.
    """
    values: dict[str, Any] = fields.flatten(config)
    devices = [values[f"mesh.{axis}"] for axis in ("data", "fsdp", "context", "tensor")]
    own_program = values["init_from"] or values["model.attention.window_stages"]
    if values["budget.kind"] == "seconds" or own_program or set(devices) != {1}:
        return None
    return json.dumps(fields.pack_values(config), sort_keys=True, default=str)
