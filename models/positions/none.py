"""No positions at all (NoPE, arXiv 2305.19466): the causal mask alone gives the order."""

import dataclasses

from flax import nnx
from ml_collections import ConfigDict

from models.positions.scheme import Scheme


@dataclasses.dataclass(frozen=True)
class NoPosition(Scheme):
    """Acts nowhere."""


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> NoPosition:
    """Builds the scheme; nothing is read from `config`."""
    return NoPosition()
