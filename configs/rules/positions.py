"""What is allowed of positions: combinations of schemes, layers, scalings and temperatures."""

from collections.abc import Mapping
from dataclasses import dataclass

from ml_collections import ConfigDict

from configs.rules import kernels, layers
from configs.rules.attention import turning_dim
from configs.schema.allowed import either

KINDS = (
    "none", "learned", "sinusoidal", "rope", "p_rope", "xpos", "alibi", "t5", "kerple_log", "kerple_power", "fire",
    "cope",
)  # fmt: skip
ABSOLUTE = ("learned", "sinusoidal")  # act on the embedding
ROTATING = layers.ROTATING
SCALED = ("rope", "p_rope")


@dataclass(frozen=True)
class Scaling:
    """What a config must know of a RoPE scaling; `models/positions/rope_scaling.py` has a function of its name.

    Attributes:
        fields: of `model.position.rope.scaling` that it reads.
        by_length: its frequencies depend on a row's length.
        grows: the stretch grows with the length by itself: factor 1 is as strong as the multiple elsewhere.
    """

    fields: tuple[str, ...] = ()
    by_length: bool = False
    grows: bool = False


_RAMP = ("factor", "original_length", "beta_fast", "beta_slow")
SCALINGS: dict[str, Scaling] = {
    "none": Scaling(),
    "linear": Scaling(("factor",)),
    "ntk": Scaling(("factor",)),
    "ntk_by_parts": Scaling(_RAMP),
    "dynamic": Scaling(("factor", "original_length"), by_length=True, grows=True),
    "yarn": Scaling((*_RAMP, "truncate", "attention_factor", "mscale", "mscale_all_dim")),
    "llama3": Scaling(("factor", "original_length", "low_freq_factor", "high_freq_factor")),
    "longrope": Scaling(
        ("factor", "original_length", "attention_factor", "short_factor", "long_factor"), by_length=True
    ),
}
TEMPERATURES = ("log_n", "llama4", "ministral3")  # `models/positions/temperature.py` has a function of each name
# How many positions xPos serves, in units of its base. Its zeta^(n/base) is e^-40 there; it would leave float32 at 69,
# and small gradients times it leave float32 sooner.
XPOS_REACH = 32


def kinds_of(config: ConfigDict) -> set[str]:
    """Returns the kinds of positions that layers of a config have."""
    return set(config.model.position.pattern) or {config.model.position.kind}


def rotary_dim(config: ConfigDict, kind: str = "rope") -> int:
    """Returns r, the rotary width of a config (resolved or not): int(K * fraction), K for p_rope, rope_dim for mla."""
    rotation = turning_dim(config.model)
    return rotation if kind == "p_rope" else int(rotation * config.model.position.rope.fraction)


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config's positions, a line each; the fields by themselves must be sound."""
    position, result = config.model.position, []
    kinds = kinds_of(config)
    absolute = sorted(kinds & {*ABSOLUTE})
    if absolute and len(kinds) > 1:
        result.append(
            f"model.position.pattern = {tuple(position.pattern)!r}: {either(absolute)} acts on the embedding, not in a "
            f"layer; a pattern holds schemes that act in attention: {either(k for k in KINDS if k not in ABSOLUTE)}"
        )
    for kind in ROTATING:
        if kind in kinds:
            result += _rotary_by_layer(config, kind)
    scaling = position.rope.scaling
    if scaling.kind != "none" and not kinds & {*SCALED}:
        result.append(
            f"model.position.rope.scaling.kind = {scaling.kind!r}: needs RoPE, but model.position.kind = "
            f"{position.kind!r}"
        )
    if "xpos" in kinds and SCALINGS[scaling.kind].by_length:
        result.append(
            f"model.position.rope.scaling.kind = {scaling.kind!r}: changes frequencies with the length, which layers "
            "of xpos cannot follow"
        )
    if kinds & {*SCALED}:
        result += _scaling(scaling)
    if kinds & {*ROTATING} and position.rope.theta <= 1:
        result.append(f"model.position.rope.theta = {position.rope.theta}: must be above 1")
    return [*result, *_reach(config, kinds), *_schemes(config, kinds)]


def _rotary_by_layer(config: ConfigDict, kind: str) -> list[str]:
    """What `_rotary` says of each layer of a kind, where a pattern gives these other heads of its own."""
    model, results = config.model, []
    pattern = tuple(model.attention.pattern)
    if not pattern:
        return _rotary(config, kind)
    own = {at % len(pattern): heads for at, heads in enumerate(layers.heads(model)) if layers.kinds(model)[at] == kind}
    for item, heads in own.items():
        of_layer = config.copy_and_resolve_references()
        of_layer.model = layers.having(model, heads)
        results += [f"model.attention.pattern[{item}]: {problem}" for problem in _rotary(of_layer, kind)]
    return results


def _rotary(config: ConfigDict, kind: str) -> list[str]:
    rope, result = config.model.position.rope, []
    width, scaling = rotary_dim(config, kind), rope.scaling
    share = "" if kind == "p_rope" else f" with model.position.rope.fraction = {rope.fraction}"
    if width < 2 or width % 2:
        of = "attention.mla.rope_dim" if config.model.attention.kind == "mla" else "head_dim"
        result.append(
            f"model.{of} = {turning_dim(config.model)}{share}: the rotary width {width} must be even and at least 2"
        )
    elif kind == "p_rope" and int(rope.fraction * width / 2) < 1:
        result.append(f"model.position.rope.fraction = {rope.fraction}: keeps no frequency of head_dim {width}")
    if kind not in SCALED:
        return result
    if scaling.kind in ("ntk", "dynamic") and width == 2:
        result.append(
            f"model.position.rope.scaling.kind = {scaling.kind!r}: changes the base by the power r/(r-2) and needs a "
            "rotary width r above 2"
        )
    if scaling.kind == "longrope":
        for name in ("short_factor", "long_factor"):
            if len(scaling[name]) != width // 2:
                result.append(
                    f"model.position.rope.scaling.{name} = {tuple(scaling[name])!r}: longrope needs a number for each "
                    f"of the {width // 2} rotary pairs"
                )
    return result


def _scaling(scaling: ConfigDict) -> list[str]:
    results = []
    if scaling.kind == "none" and scaling.factor != 1:
        results.append(
            f"model.position.rope.scaling.factor = {scaling.factor}: has no effect with scaling.kind = 'none'; set "
            "scaling.kind, or leave the factor 1"
        )
    if scaling.kind == "yarn" and scaling.beta_fast < scaling.beta_slow:
        results.append(
            f"model.position.rope.scaling.beta_fast = {scaling.beta_fast}: must be beta_slow = {scaling.beta_slow} or "
            "more"
        )
    if scaling.kind == "ntk_by_parts" and scaling.beta_fast <= scaling.beta_slow:
        results.append(
            f"model.position.rope.scaling.beta_fast = {scaling.beta_fast}: must be above beta_slow = "
            f"{scaling.beta_slow}"
        )
    if scaling.kind == "llama3" and scaling.high_freq_factor <= scaling.low_freq_factor:
        results.append(
            f"model.position.rope.scaling.high_freq_factor = {scaling.high_freq_factor}: must be above "
            f"low_freq_factor = {scaling.low_freq_factor}"
        )
    if scaling.kind == "longrope" and scaling.original_length == 1:
        results.append("model.position.rope.scaling.original_length = 1: longrope needs 2 or more")
    return results


def _reach(config: ConfigDict, kinds: set[str]) -> list[str]:
    position, result = config.model.position, []
    length = max([config.data.length, *(s.get("length", 1) for s in config.data.curriculum if isinstance(s, Mapping))])
    if "learned" in kinds and (position.max_length or length) < length:
        result.append(
            f"model.position.max_length = {position.max_length}: the learned table must hold the longest training "
            f"length, {length}"
        )
    if "xpos" in kinds and length > XPOS_REACH * position.xpos.base:
        result.append(
            f"model.position.xpos.base = {position.xpos.base}: reaches {int(XPOS_REACH * position.xpos.base)} "
            f"positions in float32, fewer than the longest training length, {length}"
        )
    return result


def _schemes(config: ConfigDict, kinds: set[str]) -> list[str]:
    position, result = config.model.position, []
    if "t5" in kinds and position.t5.max_distance <= position.t5.buckets // 2:
        result.append(
            f"model.position.t5.max_distance = {position.t5.max_distance}: must be above half of "
            f"model.position.t5.buckets = {position.t5.buckets}"
        )
    if "cope" in kinds:
        result += kernels.whole_scores_problem(config.model.attention.kernel, "CoPE reads")
    temperature = position.temperature
    nope = temperature.layers == "nope" or (temperature.kind == "llama4" and temperature.layers == "auto")
    pattern = tuple(position.pattern)[: config.model.num_layers] or (position.kind,)
    if temperature.kind != "none" and nope and "none" not in pattern:
        result.append(
            f"model.position.temperature.layers = {temperature.layers!r}: {temperature.kind} would act in layers "
            "without positions alone, and there are none; put 'none' in model.position.pattern, or set 'all'"
        )
    if temperature.kind != "none" and temperature.length == 1:
        result.append("model.position.temperature.length = 1: must be 2 or more: its logarithm divides")
    return result
