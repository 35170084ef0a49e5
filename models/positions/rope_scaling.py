"""RoPE scalings: how a model trained on L0 tokens is stretched, as inverse frequencies and a factor on cos and sin.

A scaling is one function in `SCALINGS`, from (theta, r, scaling, lengths) to (inverse frequencies, factor):
w_i = theta^(-2i/r) for i < r/2, L0 the original length, s the factor. Frequencies are computed in float64 and given
as float32 [r/2]; those that depend on the length are float32 arrays [B|1, T, r/2].
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules import positions as declared

Frequencies = tuple[np.ndarray | Array, float]


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A scaling and its parameters; the fields are those of config.model.position.rope.scaling."""

    kind: str = "none"
    factor: float = 1.0
    original_length: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def uses_lengths(self) -> bool:
        """Whether the frequencies depend on the sequence's length."""
        return SCALINGS[self.kind].uses_lengths

    def frequencies(self, theta: float, r: int, lengths: Array | None = None) -> Frequencies:
        """Returns inverse frequencies and the factor: [r/2], or [B|1, T, r/2] where they depend on lengths [B|1, T]."""
        return SCALINGS[self.kind].function(theta, r, self, lengths)

    @property
    def score_factor(self) -> float:
        """What DeepSeek's latent attention multiplies whole scores by: g(mscale_all_dim)^2 where YaRN sets it, else 1.

        The factor on cos and sin reaches the rotary part of the scores alone, which in latent attention is a part only;
        where both mscales are equal, as in DeepSeek-V2, that factor is 1 and this one is all there is. Elsewhere
        cos and sin carry everything, and this is not read.
        """
        return yarn_mscale(self, self.mscale_all_dim) ** 2 if self.kind == "yarn" and self.mscale_all_dim else 1.0

    @property
    def trained_length(self) -> int:
        """L0.

        Raises:
            ConfigError: it is not set.
        """
        if self.original_length is None:
            raise ConfigError(f"model.position.rope.scaling.original_length: {self.kind} needs it")
        return self.original_length


@dataclasses.dataclass(frozen=True)
class Kind:
    """An entry of the registry."""

    function: Callable[[float, int, Scaling, Array | None], Frequencies]
    fields: tuple[str, ...] = ()  # of the scaling that it reads
    uses_lengths: bool = False
    grows: bool = False  # the stretch grows with the length by itself: factor 1 is as strong as the multiple elsewhere


def _plain(theta: float, r: int) -> np.ndarray:
    return theta ** (-np.arange(0, r, 2, dtype=np.float64) / r)


def none(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """w_i as they are."""
    return _plain(theta, r).astype(np.float32), 1.0


def linear(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """w_i / s: position interpolation (arXiv 2306.15595)."""
    return (_plain(theta, r) / scaling.factor).astype(np.float32), 1.0


def ntk(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """A larger base, theta * s^(r/(r-2)): the fastest pair keeps its frequency, the slowest is interpolated by s."""
    return _plain(theta * scaling.factor ** (r / (r - 2)), r).astype(np.float32), 1.0


def ntk_by_parts(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """Fast pairs are kept, slow ones interpolated by s, a ramp in rotations between (2309.00071, section 3.2).

    Kept from `beta_fast` rotations in L0 tokens on, interpolated up to `beta_slow` (the paper's beta and alpha).
    YaRN as shipped ramps over dims instead, and multiplies cos and sin.
    """
    plain = _plain(theta, r)
    rotations = scaling.trained_length * plain / (2 * math.pi)
    keep = np.clip((rotations - scaling.beta_slow) / (scaling.beta_fast - scaling.beta_slow), 0, 1)
    return (plain * (keep + (1 - keep) / scaling.factor)).astype(np.float32), 1.0


def dynamic(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """NTK whose base grows with the sequence: theta * (s n/L0 - (s-1))^(r/(r-2)), n = max(length, L0).

    At length m L0 this is NTK with factor s m - (s - 1): dynamic(s) at s L0 is ntk(s^2 - s + 1), and dynamic(1) is
    ntk(m) at every m. Written as a growth that multiplies the plain frequencies, so that it is 1 and they are plain to
    the bit where the length is L0 or less.
    """
    if lengths is None:
        raise ValueError("dynamic scaling depends on the sequences' lengths: give them")
    length = scaling.trained_length
    over = jnp.maximum(lengths.astype(jnp.int32) - length, 0).astype(jnp.float32) / length
    growth = jnp.log1p(scaling.factor * over)[..., None]
    exponents = (-np.arange(0, r, 2, dtype=np.float64) / (r - 2)).astype(np.float32)
    return _plain(theta, r).astype(np.float32) * jnp.exp(growth * exponents), 1.0


def yarn(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """YaRN as shipped (arXiv 2309.00071): slow pairs interpolated, fast ones kept, a ramp over dims between.

    The ramp runs from c(beta_fast) to c(beta_slow), c(n) = r ln(L0/(2 pi n)) / (2 ln theta) the (fractional) pair
    that makes n rotations in L0 tokens.
    """

    def pair(rotations: float) -> float:
        return r * math.log(scaling.trained_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(r // 2) - low) / (high - low), 0, 1)
    plain = _plain(theta, r)
    inv_freq = plain / scaling.factor * ramp + plain * (1 - ramp)
    return inv_freq.astype(np.float32), yarn_factor(scaling)


def yarn_factor(scaling: Scaling) -> float:
    """Returns YaRN's multiplier of cos and sin (scores grow by its square).

    The explicit one wins; else the quotient where both mscales are set; else the paper's 0.1 ln s + 1.
    """

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return yarn_mscale(scaling, scaling.mscale) / yarn_mscale(scaling, scaling.mscale_all_dim)
    return yarn_mscale(scaling, 1.0)


def yarn_mscale(scaling: Scaling, m: float) -> float:
    """Returns g(m) = 0.1 m ln s + 1, and 1 where nothing is stretched."""
    return 0.1 * m * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def llama3(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """Llama 3.1: wavelengths below L0/high are kept, those above L0/low divided by s, a smooth blend between."""
    plain = _plain(theta, r)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    rotations = scaling.trained_length * plain / (2 * math.pi)
    keep = np.clip((rotations - low) / (high - low), 0, 1)
    return (plain * (keep + (1 - keep) / scaling.factor)).astype(np.float32), 1.0


def longrope(theta: float, r: int, scaling: Scaling, lengths: Array | None) -> Frequencies:
    """LongRoPE (2402.13753), as Phi-3 ships it: w_i / long_i where the sequence is longer than L0, else w_i / short_i.

    cos and sin are multiplied by `attention_factor`, unset: sqrt(1 + ln s / ln L0), at either length. Phi-3's code
    takes the longest sequence of the batch; here each token's own counts. The search for the lists is not here.
    """
    if lengths is None:
        raise ValueError("longrope scaling depends on the sequences' lengths: give them")
    for name, given in (("short_factor", scaling.short_factor), ("long_factor", scaling.long_factor)):
        if len(given) != r // 2:
            raise ConfigError(
                f"model.position.rope.scaling.{name}: longrope needs a number for each of the {r // 2} rotary pairs, "
                f"not {len(given)}"
            )
    plain, length = _plain(theta, r), scaling.trained_length
    short, long = ((plain / np.asarray(f)).astype(np.float32) for f in (scaling.short_factor, scaling.long_factor))
    factor = 1.0
    if scaling.attention_factor is not None:
        factor = scaling.attention_factor
    elif scaling.factor > 1:
        factor = math.sqrt(1 + math.log(scaling.factor) / math.log(length))
    return jnp.where((lengths > length)[..., None], long, short), factor


# By name: what `configs.rules.positions` declares, and the function of that name in this file.
SCALINGS: dict[str, Kind] = {
    name: Kind(globals()[name], one.fields, uses_lengths=one.by_length, grows=one.grows)
    for name, one in declared.SCALINGS.items()
}


def from_config(scaling: ConfigDict) -> Scaling:
    """Reads config.model.position.rope.scaling.

    Raises:
        ConfigError: an unknown kind.
    """
    if scaling.kind not in SCALINGS:
        raise ConfigError(
            f"model.position.rope.scaling.kind = {scaling.kind!r}: must be one of {', '.join(SCALINGS)}"
            f"{nearest(scaling.kind, SCALINGS)}"
        )
    values: dict[str, Any] = {field.name: scaling[field.name] for field in dataclasses.fields(Scaling)}
    # Hashable, as a frozen dataclass should be; a hand-made config may hold lists.
    values |= {name: tuple(values[name]) for name in ("short_factor", "long_factor")}
    return Scaling(**values)


def with_scaling(
    config: ConfigDict, kind: str, factor: float = 1.0, original_length: int | None = None, **parameters: Any
) -> ConfigDict:
    """Returns a copy of config.model with another RoPE scaling, for use at evaluation alone.

    `original_length` unset keeps the model's own, and so do longrope's lists; `parameters` are further fields of the
    scaling, the others return to their defaults. Parameters of the model are not touched by a scaling, so trained
    ones fit the copy.

    Raises:
        ConfigError: an unknown kind, or a model that does not rotate.
    """
    kinds = set(config.position.pattern) or {config.position.kind}
    if not kinds & {"rope", "p_rope"}:
        raise ConfigError(f"RoPE scaling {kind!r}: the model's positions are {', '.join(sorted(kinds))}, not rope")
    length = original_length or config.position.rope.scaling.original_length
    if kind == "longrope":
        own = from_config(config.position.rope.scaling)
        parameters = {"short_factor": own.short_factor, "long_factor": own.long_factor, **parameters}
    scaling = Scaling(kind=kind, factor=float(factor), original_length=length, **parameters)
    copy = config.copy_and_resolve_references()
    with copy.unlocked(), copy.ignore_type():
        copy.position.rope.scaling.update(dataclasses.asdict(scaling))
    from_config(copy.position.rope.scaling)
    return copy
