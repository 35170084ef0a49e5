"""Positional schemes: one file each, behind one small protocol (`Scheme`)."""

import importlib
import inspect
from collections.abc import Callable

from flax import nnx
from ml_collections import ConfigDict

from models.declared.positions import KINDS, kind_of
from models.positions.head_bias import HeadBias
from models.positions.lengths import sequence_lengths
from models.positions.rope_scaling import with_scaling
from models.positions.scheme import BiasFunction, Scheme, ScoresFunction
from models.positions.temperature import TEMPERATURES, Temperature
from models.positions.temperature import build as temperature_of

__all__ = [
    "SCHEMES",
    "TEMPERATURES",
    "BiasFunction",
    "HeadBias",
    "Scheme",
    "ScoresFunction",
    "Temperature",
    "build",
    "has_head_bias",
    "places_of",
    "sequence_lengths",
    "temperature_of",
    "with_scaling",
]

# kind -> function (config.model, rngs or None) -> an instance, in the module that the kind's declaration names.
SCHEMES: dict[str, Callable[[ConfigDict, nnx.Rngs | None], Scheme]] = {
    name: getattr(importlib.import_module(f"models.positions.{kind.module}"), kind.build)
    for name, kind in KINDS.items()
}


def build(config: ConfigDict, kind: str | None = None, *, rngs: nnx.Rngs | None = None) -> Scheme:
    """Builds a scheme from a resolved config.model.

    Args:
        config: config.model.
        kind: which one, for patterns by layer; unset: config.position.kind.
        rngs: for schemes with parameters.

    Raises:
        ConfigError: an unknown kind, or parameters the scheme cannot take.
    """
    kind = config.position.kind if kind is None else kind
    kind_of(kind)
    return SCHEMES[kind](config, rngs)


def places_of(kind: str) -> frozenset[str]:
    """Returns where a kind of scheme acts, a subset of {embed, rotate, bias, scores}.

    Raises:
        ConfigError: an unknown kind.
    """
    kind_of(kind)
    return class_of(kind).places


def has_head_bias(kind: str) -> bool:
    """Tells whether a kind's bias is a `HeadBias`, which fused kernels compute: what its `bias` is annotated to return.

    Raises:
        ConfigError: an unknown kind.
    """
    kind_of(kind)
    found = inspect.get_annotations(class_of(kind).bias, eval_str=True)["return"]
    return inspect.isclass(found) and issubclass(found, HeadBias)


def class_of(kind: str) -> type[Scheme]:
    """Returns the class of a registered kind: what its `build` is annotated to return."""
    result = inspect.get_annotations(SCHEMES[kind], eval_str=True)["return"]
    assert issubclass(result, Scheme)
    return result
