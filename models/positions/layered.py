"""How schemes with parameters begin, and those whose layers each have their own."""

import dataclasses

from flax import nnx
from ml_collections import ConfigDict

from models.layers import Initializer
from models.pattern import plans


def initializer(config: ConfigDict, kind: str, rngs: nnx.Rngs | None) -> Initializer:
    """Returns what draws a scheme's parameters; `stacked` ones are for those layers of config.model that have `kind`.

    Raises:
        ValueError: rngs is None.
    """
    if rngs is None:
        raise ValueError(f"{kind} positions have parameters: rngs must be given")
    layers = sum(plan.position == kind for plan in plans(config))
    return dataclasses.replace(Initializer.of(config, rngs), num_layers=layers)
