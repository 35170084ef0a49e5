"""Positional schemes: one file each, behind one small protocol (`Scheme`)."""

from collections.abc import Callable

from flax import nnx
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from models.positions import learned, none, rope, sinusoidal
from models.positions.lengths import sequence_lengths
from models.positions.rope_scaling import with_scaling
from models.positions.scheme import BiasFunction, Scheme

__all__ = ["SCHEMES", "BiasFunction", "Scheme", "build", "sequence_lengths", "with_scaling"]

# kind -> function (config.model, rngs or None) -> Scheme.
SCHEMES: dict[str, Callable[[ConfigDict, nnx.Rngs | None], Scheme]] = {
    "none": none.build,
    "learned": learned.build,
    "sinusoidal": sinusoidal.build,
    "rope": rope.build,
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
    if kind not in SCHEMES:
        raise ConfigError(
            f"model.position.kind = {kind!r}: must be one of {', '.join(SCHEMES)}{nearest(kind, SCHEMES)}"
        )
    return SCHEMES[kind](config, rngs)
