"""Positional schemes: one file each, behind one small protocol (`Scheme`)."""

from collections.abc import Callable

from flax import nnx
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from models.positions import alibi, cope, fire, kerple, learned, none, p_rope, rope, sinusoidal, t5, xpos
from models.positions.lengths import sequence_lengths
from models.positions.rope_scaling import with_scaling
from models.positions.scheme import BiasFunction, Scheme, ScoresFunction
from models.positions.temperature import TEMPERATURES, Temperature
from models.positions.temperature import build as temperature_of

__all__ = [
    "SCHEMES",
    "TEMPERATURES",
    "BiasFunction",
    "Scheme",
    "ScoresFunction",
    "Temperature",
    "build",
    "places_of",
    "sequence_lengths",
    "temperature_of",
    "with_scaling",
]

# kind -> (class, function (config.model, rngs or None) -> an instance).
SCHEMES: dict[str, tuple[type[Scheme], Callable[[ConfigDict, nnx.Rngs | None], Scheme]]] = {
    "none": (none.NoPosition, none.build),
    "learned": (learned.Learned, learned.build),
    "sinusoidal": (sinusoidal.Sinusoidal, sinusoidal.build),
    "rope": (rope.Rope, rope.build),
    "p_rope": (p_rope.PRope, p_rope.build),
    "xpos": (xpos.XPos, xpos.build),
    "alibi": (alibi.Alibi, alibi.build),
    "t5": (t5.T5, t5.build),
    "kerple_log": (kerple.Kerple, kerple.build_log),
    "kerple_power": (kerple.Kerple, kerple.build_power),
    "fire": (fire.Fire, fire.build),
    "cope": (cope.Cope, cope.build),
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
