"""RoPE scalings as arguments of a compiled program, so that one program serves every scaling of a model.

A scaling only sets r/2 inverse frequencies and a factor. As constants they would make another program of each scaling,
and compiling a small model takes far longer than running it.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from configs.rules.positions import SCALED
from models import pattern
from models.positions import rope_scaling

KINDS = SCALED  # the schemes a RoPE scaling acts on

# scheme -> (inverse frequencies [r/2], factor on cos and sin [], factor on latent attention's scores []), float32
Frequencies = dict[str, tuple[np.ndarray, np.float32, np.float32]]


@dataclasses.dataclass(frozen=True)
class Given:
    """A scaling whose numbers are given as arrays; they do not depend on the length."""

    inv_freq: Array  # [r/2]
    factor: Array  # []
    score_factor: Array  # []
    kind: str = "given"
    uses_lengths: bool = False

    def frequencies(self, theta: float, r: int, lengths: Array | None = None) -> tuple[Array, Array]:
        """Returns the inverse frequencies and the factor."""
        return self.inv_freq, self.factor


def slowest_stretch(config: ConfigDict, length: int) -> float | None:
    """Returns by how much the slowest rotating pair is slowed at `length`: the strength of a model's RoPE scaling.

    It is s for `linear` and `ntk` of factor s, whatever the length, so it is also the factor of the NTK scaling that is
    as strong. Of several rotating schemes the first counts.

    Args:
        config: a resolved config.model.
        length: tokens of the sequence.

    Returns:
        1 where nothing is stretched; None if the model has no scheme that a scaling acts on.
    """
    from models.positions import build

    plans = pattern.plans(config)
    layer = next((layer for layer, plan in enumerate(plans) if plan.position in KINDS), None)
    if layer is None:
        return None
    scheme: Any = build(pattern.of_layer(config, layer), plans[layer].position)
    r = scheme.rotary_dim
    scaled = scheme.scaling.frequencies(scheme.theta, r, jnp.full((1, 1), length))[0]
    slowest = getattr(scheme, "kept", r // 2) - 1
    plain = scheme.theta ** (-2 * slowest / r)
    return float(plain / np.asarray(scaled, np.float64).reshape(-1)[slowest])


def share(config: ConfigDict, length: int | None) -> tuple[ConfigDict, Frequencies]:
    """Returns the config that a model has in common with its other RoPE scalings, and this one's numbers.

    Args:
        config: a resolved config.model.
        length: of every sequence, one sequence per row; None: sequences of other lengths come too, and a scaling that
            reads the length stays as it is, with no numbers.
    """
    from models.positions import build

    schemes: dict[str, Any] = {
        plan.scheme: build(pattern.of_layer(config, layer), plan.position)
        for layer, plan in enumerate(pattern.plans(config))
        if plan.position in KINDS
    }
    if not schemes or (length is None and any(scheme.uses_lengths for scheme in schemes.values())):
        return config, {}
    results = {}
    for name, scheme in schemes.items():
        lengths = jnp.full((1, 1), length or 0)
        inv_freq, factor = scheme.scaling.frequencies(scheme.theta, scheme.rotary_dim, lengths)
        score_factor = np.float32(scheme.score_factor)
        results[name] = np.asarray(inv_freq, np.float32).reshape(-1), np.float32(factor), score_factor
    return rope_scaling.with_scaling(config, "none", original_length=1), results


def apply(model: Any, frequencies: Frequencies) -> None:
    """Gives a Transformer the numbers that `share` found, in place; for a model merged inside a traced function."""
    for name, (inv_freq, factor, score_factor) in frequencies.items():
        given = Given(jnp.asarray(inv_freq), jnp.asarray(factor), jnp.asarray(score_factor))
        model.schemes[name] = dataclasses.replace(model.schemes[name], scaling=given)
