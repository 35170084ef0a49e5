"""Which layer does what: the position kind and the window of each, from config.model alone."""

import math
from typing import NamedTuple

from ml_collections import ConfigDict


class LayerPlan(NamedTuple):
    """What sets one layer apart from its neighbours."""

    position: str  # kind of positional scheme
    window: int | None  # keys each query sees, itself included; None: all before it


def plans(config: ConfigDict) -> tuple[LayerPlan, ...]:
    """Returns a plan for each layer of config.model; patterns repeat, a window of 0 is none."""
    positions = tuple(config.position.pattern) or (config.position.kind,)
    windows = tuple(config.attention.window_pattern) or (config.attention.window,)
    return tuple(
        LayerPlan(positions[layer % len(positions)], windows[layer % len(windows)] or None)
        for layer in range(config.num_layers)
    )


def period(config: ConfigDict) -> int:
    """Returns after how many layers the plans repeat; num_layers where they do not repeat in whole groups."""
    result = plans(config)
    smallest = math.lcm(len(config.position.pattern) or 1, len(config.attention.window_pattern) or 1)
    for size in range(1, smallest + 1):
        if len(result) % size == 0 and result == result[:size] * (len(result) // size):
            return size
    return len(result)
