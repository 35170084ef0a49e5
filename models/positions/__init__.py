"""Positional schemes: one file each, behind one small protocol (`Scheme`)."""

from collections.abc import Callable

from flax import nnx
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from models.positions import learned, none, rope, sinusoidal
from models.positions.lengths import sequence_lengths
from models.positions.rope_scaling import with_scaling
from models.positions.scheme import BiasFunction, Scheme

__all__ = ["SCHEMES", "BiasFunction", "Scheme", "build", "places_of", "sequence_lengths", "with_scaling"]

# kind -> (class, function (config.model, rngs or None) -> an instance).
SCHEMES: dict[str, tuple[type[Scheme], Callable[[ConfigDict, nnx.Rngs | None], Scheme]]] = {
    "none": (none.NoPosition, none.build),
    "learned": (learned.Learned, learned.build),
    "sinusoidal": (sinusoidal.Sinusoidal, sinusoidal.build),
    "rope": (rope.Rope, rope.build),
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
    return _entry(kind)[1](config, rngs)


def places_of(kind: str) -> frozenset[str]:
    """Returns where a kind of scheme acts, a subset of {embed, rotate, bias, scores}.

    Raises:
        ConfigError: an unknown kind.
    """
    return _entry(kind)[0].places


def _entry(kind: str) -> tuple[type[Scheme], Callable[[ConfigDict, nnx.Rngs | None], Scheme]]:
    if kind not in SCHEMES:
        raise ConfigError(
            f"model.position.kind = {kind!r}: must be one of {', '.join(SCHEMES)}{nearest(kind, SCHEMES)}"
        )
    return SCHEMES[kind]
