"""What each layer of a config.model (resolved or not) has: patterns repeat."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

ROTATING = ("rope", "p_rope", "xpos")  # positions that turn queries and keys
FIELDS = ("num_heads", "num_kv_heads", "head_dim", "theta")  # of model.attention.pattern's items


class Heads(NamedTuple):
    """The heads of one layer, and the base of its rotations."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    theta: float

    @classmethod
    def of(cls, model: ConfigDict) -> "Heads":
        """Returns the model's own, which a pattern changes by layer."""
        kv_heads, head_dim = model.num_kv_heads or model.num_heads, model.head_dim or model.width // model.num_heads
        return cls(model.num_heads, kv_heads, head_dim, model.position.rope.theta)

    def having(self, item: Mapping[str, Any], kind: str) -> "Heads":
        """Returns these heads changed by an item of the pattern; latent attention has a key and value a head."""
        result = self._replace(**item)
        return result._replace(num_kv_heads=result.num_heads) if kind == "mla" else result


def having(model: ConfigDict, own: Heads) -> ConfigDict:
    """Returns a copy of config.model with the heads of one of its layers for its own.

    Its pattern holds every layer's, so that the layers are what they were.
    """
    pattern, result = tuple(of._asdict() for of in heads(model)), model.copy_and_resolve_references()
    with result.ignore_type():
        result.attention.pattern = pattern
        result.num_heads, result.num_kv_heads, result.head_dim = own[:3]
        result.position.rope.theta = own.theta
    return result


def kinds(model: ConfigDict) -> tuple[str, ...]:
    """Returns the kind of positions of each layer."""
    pattern = tuple(model.position.pattern) or (model.position.kind,)
    return tuple(pattern[layer % len(pattern)] for layer in range(model.num_layers))


def windows(model: ConfigDict) -> tuple[int | None, ...]:
    """Returns the window of each layer, None for none."""
    pattern = tuple(model.attention.window_pattern) or (model.attention.window,)
    return tuple(pattern[layer % len(pattern)] or None for layer in range(model.num_layers))


def kv_back(model: ConfigDict) -> tuple[int, ...]:
    """Returns how many layers before each layer the one is whose keys and values it reads; 0: its own."""
    share, first = model.attention.kv_share, model.attention.kv_share_from
    return tuple((layer - first) % share if layer >= first else 0 for layer in range(model.num_layers))


def heads(model: ConfigDict) -> tuple[Heads, ...]:
    """Returns the heads of each layer."""
    pattern: tuple[Mapping[str, Any], ...] = tuple(model.attention.pattern) or ({},)
    by_item = [Heads.of(model).having(item, model.attention.kind) for item in pattern]
    return tuple(by_item[layer % len(by_item)] for layer in range(model.num_layers))
