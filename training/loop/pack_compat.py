"""Which runs may train in one program: those whose configs differ only in numbers that are arguments. No JAX."""

import json
from typing import Any

from ml_collections import ConfigDict

from configs import fields


def key(config: ConfigDict) -> str | None:
    """Returns a key that is equal for runs of one program; None: a run that must train alone.

    Runs with and without decay differ in the form of the optimizer state. A budget in seconds would include the time of
    the others. A mesh has its own programs, and so has each stage of a growing window. Runs with parameters from
    elsewhere train alone.
    """
    values: dict[str, Any] = fields.flatten(config)
    devices = [values[f"mesh.{axis}"] for axis in ("data", "fsdp", "context", "tensor")]
    own_program = values["init_from"] or values["model.attention.window_stages"]
    if values["budget.kind"] == "seconds" or own_program or set(devices) != {1}:
        return None
    return json.dumps(fields.pack_values(config), sort_keys=True, default=str)
