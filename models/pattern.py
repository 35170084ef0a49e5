"""Which layer does what, from config.model alone: positions, window, heads, and whose keys and values it reads."""

import math
from typing import NamedTuple

from ml_collections import ConfigDict

from configs.rules import layers
from configs.rules.layers import Heads
from configs.rules.positions import ABSOLUTE, ROTATING


class LayerPlan(NamedTuple):
    """What sets one layer apart from its neighbours."""

    position: str  # kind of positional scheme
    window: int | None  # keys each query sees, itself included; None: all before it
    kv_back: int  # how many layers before it the one is whose keys and values it reads; 0: its own
    heads: Heads
    scheme: str  # name of its scheme: the kind, and a number where layers of a kind are unlike

    @property
    def shape(self) -> tuple[bool, int, int, int]:
        """What decides about the layer's parameters: layers that are equal in it are stacked."""
        return self.kv_back == 0, *self.heads[:3]


def plans(config: ConfigDict) -> tuple[LayerPlan, ...]:
    """Returns a plan for each layer of config.model; patterns repeat, a window of 0 is none."""
    kinds, heads = layers.kinds(config), layers.heads(config)
    keys = [scheme_key(kind, of) for kind, of in zip(kinds, heads, strict=True)]
    schemes = []
    for kind, key in zip(kinds, keys, strict=True):
        unlike = [*dict.fromkeys(other for other in keys if other[0] == kind)]
        schemes.append(kind if len(unlike) == 1 else f"{kind}_{unlike.index(key)}")
    return tuple(map(LayerPlan, kinds, layers.windows(config), layers.kv_back(config), heads, schemes))


def scheme_key(kind: str, heads: Heads) -> tuple[str, ...]:
    """Returns what decides about a layer's scheme: layers that are equal in it have one scheme, and its parameters."""
    if kind == "none" or kind in ABSOLUTE:
        return (kind,)
    own = (heads.head_dim, heads.theta) if kind in ROTATING else (heads.num_heads, heads.head_dim)
    return (kind, *map(str, own))


def of_layer(config: ConfigDict, layer: int) -> ConfigDict:
    """Returns config.model as one layer has it: with that layer's heads and theta for the model's.

    Patterns stay, so that the layers are what they were.
    """
    return layers.having(config, layers.heads(config)[layer]) if config.attention.pattern else config


def stacks(config: ConfigDict) -> dict[str, tuple[int, ...]]:
    """Returns the layers of which each stack of parameters is made, by the stack's path.

    Layers whose parameters have the same names and shapes are one stack. Most models have one, `blocks`; several are
    `blocks.0`, `blocks.1` and so on, in the order of their first layers.
    """
    by_shape: dict[tuple[bool, int, int, int], list[int]] = {}
    for layer, plan in enumerate(plans(config)):
        by_shape.setdefault(plan.shape, []).append(layer)
    alone = len(by_shape) == 1
    return {"blocks" if alone else f"blocks.{index}": tuple(of) for index, of in enumerate(by_shape.values())}


def owners(config: ConfigDict) -> tuple[int, ...]:
    """Returns the layers that have keys and values of their own: the KV cache has an entry for each."""
    return tuple(layer for layer, plan in enumerate(plans(config)) if plan.kv_back == 0)


def period(config: ConfigDict) -> int:
    """Returns after how many layers the plans repeat; num_layers where they do not repeat in whole groups."""
    result = plans(config)
    attention = config.attention
    patterns = (config.position.pattern, attention.window_pattern, attention.pattern)
    smallest = math.lcm(*(len(pattern) or 1 for pattern in patterns), attention.kv_share)
    for size in range(1, smallest + 1):
        if len(result) % size == 0 and result == result[:size] * (len(result) // size):
            return size
    return len(result)
