"""A model's first parameters, apart from its graph."""

import functools
import json
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from models.transformer import Transformer


def seed_key(seed: int) -> jax.Array:
    """Returns a key that depends on all 64 bits of a seed in 0 .. 2**63 - 1 (`jax.random.key` reads 32)."""
    key = jax.random.key(seed & 0xFFFFFFFF)
    return key if seed < 2**32 else jax.random.fold_in(key, seed >> 32)


def abstract(config: ConfigDict) -> tuple[Any, Any]:
    """Returns (graphdef, parameters as shapes) of a resolved config.model; allocates nothing.

    A config is traced once a process: the parameters are a tree of their own at each call.
    """
    graphdef, params = _abstract(_Traced(json.dumps(config.to_dict(), sort_keys=True), config))
    return graphdef, jax.tree.map(lambda leaf: leaf, params)


@dataclass(frozen=True)
class _Traced:
    """A config.model, equal to another of the same fields."""

    text: str
    config: ConfigDict = field(compare=False)


@functools.lru_cache(maxsize=64)
def _abstract(traced: _Traced) -> tuple[Any, Any]:
    config = traced.config.copy_and_resolve_references()
    return nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))


def initialise(config: ConfigDict, seed: int) -> tuple[Any, Any]:
    """Returns (graphdef, params): `nnx.merge(graphdef, params)` is the model, params an nnx.State of float32 arrays.

    Args:
        config: a resolved config.model, vocab_size set.
        seed: in 0 .. 2**63 - 1.

    Raises:
        ConfigError: vocab_size is not set.
    """
    return nnx.split(Transformer(config, rngs=nnx.Rngs(seed_key(seed))))
