"""What is allowed of attention: combinations of its switches."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.errors import nearest
from configs.rules import kernels, layers

MOST_HEADS = 65_536  # every table of heads grows with them

ROTATION = ("rope", "none")  # positions that multi-head latent attention has


def head_dim(model: ConfigDict) -> int:
    """Returns K of a config.model (resolved or not)."""
    return model.head_dim or model.width // model.num_heads


def latent_dims(model: ConfigDict) -> dict[str, int | None]:
    """Returns config.model.attention.mla with unset sizes filled in, in DeepSeek-V2's proportions (its section 3.1.2).

    The latent of keys and values has 4 head_dim numbers, the shared rotary key head_dim / 2 (made even).
    """
    dim = head_dim(model)
    usual = {
        "kv_rank": 4 * dim,
        "query_rank": None,
        "nope_dim": dim,
        "rope_dim": max(2, dim // 4 * 2),
        "value_dim": dim,
    }
    given = model.attention.mla
    return {name: value if given[name] is None else given[name] for name, value in usual.items()}


def latent_dim(name: str) -> Callable[[ConfigDict], int | None]:
    """Returns how a size of config.model.attention.mla resolves; it stays unset where attention is of another kind."""

    def resolve(config: ConfigDict) -> int | None:
        return latent_dims(config.model)[name] if config.model.attention.kind == "mla" else None

    return resolve


def turning_dim(model: ConfigDict) -> int:
    """Returns how many dims of queries and keys positions may turn: K, or mla's rope_dim."""
    if model.attention.kind == "mla":
        return latent_dims(model)["rope_dim"] or 0
    return head_dim(model)


def score_dims(model: ConfigDict) -> tuple[int, int]:
    """Returns the dims of each query and key, and of each value, of a resolved config.model."""
    if model.attention.kind == "mla":
        return model.attention.mla.nope_dim + model.attention.mla.rope_dim, model.attention.mla.value_dim
    return model.head_dim, model.head_dim


def gate_dims(config: ConfigDict) -> int | None:
    """Returns how many dims of a layer's input the output gate reads; unset where there is none."""
    return config.model.width if config.model.attention.gate.kind != "none" else None


def sigmoid_bias(config: ConfigDict) -> float | None:
    """Returns what sigmoid attention adds to its scores, -ln of the length trained on; unset for other weights."""
    return -math.log(config.data.length) if config.model.attention.weights.kind == "sigmoid" else None


def outputs(model: ConfigDict) -> tuple[int, int]:
    """Returns (heads, dims of each) of what a layer attends to, of a resolved config.model."""
    if model.attention.kind == "differential":
        return model.num_heads // 2, 2 * model.head_dim
    return model.num_heads, score_dims(model)[1]


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config's attention, a line each; the fields by themselves must be sound."""
    attention, result = config.model.attention, []
    if attention.scale is not None and attention.scale_rule != "auto":
        result.append(
            f"model.attention.scale = {attention.scale}: model.attention.scale_rule = {attention.scale_rule!r} sets "
            "the scale already; leave one of them out"
        )
    result += [*_switches(config.model), *_shared(config.model), *_mixed_values(config.model)]
    return [*result, *_latent(config.model)] if attention.kind == "mla" else result


def _switches(model: ConfigDict) -> list[str]:
    gate, result = model.attention.gate, []
    if gate.dims is not None and gate.kind == "none":
        result.append(f"model.attention.gate.dims = {gate.dims}: has no effect with model.attention.gate.kind = 'none'")
    elif gate.dims is not None and gate.dims > model.width:
        result.append(f"model.attention.gate.dims = {gate.dims}: must be at most model.width = {model.width}")
    if model.attention.value_residual != "none" and model.attention.qkv == "fused":
        result.append(
            f"model.attention.qkv = 'fused': model.attention.value_residual = {model.attention.value_residual!r} "
            "computes the first layer's values by themselves; set split"
        )
    result += [*_weights(model), *_selective(model)]
    return result + (_differential(model) if model.attention.kind == "differential" else [])


def _weights(model: ConfigDict) -> list[str]:
    attention, result = model.attention, []
    weights, kind = attention.weights, f"model.attention.weights.kind = {attention.weights.kind!r}"
    for owner, name in (("sigmoid", "sigmoid_bias"), ("top_k", "top_k")):
        if weights.kind != owner and weights[name] is not None:
            result.append(f"model.attention.weights.{name} = {weights[name]}: has no effect with {kind}")
    if weights.kind == "top_k" and weights.top_k is None:
        result.append(f"model.attention.weights.top_k: must be set with {kind}: keys that each query keeps")
    if weights.kind == "sigmoid" and attention.sinks:
        result.append(f"model.attention.sinks = True: {kind} has no sum that a sink could join; set false")
    needs = [f"model.attention.kind = {attention.kind!r}"] if attention.kind == "differential" else []
    needs += ["model.attention.talking_heads = True"] if attention.talking_heads else []
    needs += [kind] if weights.kind != "softmax" else []
    why = f"makes weights by a plain softmax, and {needs[0]} needs" if needs else ""
    return result + (kernels.whole_scores_problem(attention.kernel, why) if needs else [])


def _selective(model: ConfigDict) -> list[str]:
    """Returns what selective attention cannot be combined with: it sums scores over all earlier queries."""
    attention, kind = model.attention, "model.attention.weights.kind = 'selective'"
    if attention.weights.kind != "selective":
        return []
    stages = tuple(attention.window_stages)
    return [
        f"model.attention.{name} = {value!r}: {kind} {why}"
        for name, value, wrong, why in (
            ("kind", attention.kind, attention.kind == "mla", "needs whole keys, which a latent does not hold"),
            ("talking_heads", attention.talking_heads, attention.talking_heads, "reads one head's scores; set false"),
            ("kv_share", attention.kv_share, attention.kv_share > 1, "keeps a sum in each layer's own cache; set 1"),
            ("window", attention.window, attention.window is not None, "sums over all earlier queries; unset it"),
            ("window_pattern", tuple(attention.window_pattern), any(attention.window_pattern), "needs full layers"),
            ("window_stages", stages, bool(stages), "needs full layers"),
        )
        if wrong
    ]


def _differential(model: ConfigDict) -> list[str]:
    attention, kind, result = model.attention, "model.attention.kind = 'differential'", []
    groups = model.num_kv_heads or model.num_heads
    if groups % 2:
        name = "num_heads" if model.num_kv_heads is None else "num_kv_heads"
        result.append(f"model.{name} = {groups}: must be even with {kind}, whose heads are pairs")
    if attention.weights.kind != "softmax":
        result.append(f"model.attention.weights.kind = {attention.weights.kind!r}: {kind} subtracts softmax's weights")
    if attention.tie_kv:
        result.append(f"model.attention.tie_kv = True: {kind} has values of two keys' dims; set false")
    if attention.pattern:
        result.append(
            f"model.attention.pattern = {tuple(attention.pattern)!r}: {kind} has the same heads in all layers"
        )
    for name, why in (
        ("talking_heads", "mixes the two maps of its pairs alone"),
        ("exclusive", "normalises its outputs, which would no longer be orthogonal to values"),
    ):
        if attention[name]:
            result.append(f"model.attention.{name} = True: {kind} {why}; set false")
    return result


def pattern_problems(config: ConfigDict) -> list[str]:
    """Returns every problem of the heads by layer, a line each; rules over layers need them sound."""
    model, results = config.model, []
    pattern = tuple(model.attention.pattern)
    for index, item in enumerate(pattern):
        name = f"model.attention.pattern[{index}]"
        if not isinstance(item, Mapping):
            results.append(f"{name} = {item!r}: must be dict({', '.join(f'{field}=' for field in layers.FIELDS)})")
            continue
        for field, value in item.items():
            results += _item(model, f"{name}.{field}", field, value)
    if results:
        return results
    for index, item in enumerate(pattern):
        own = layers.Heads.of(model).having(item, model.attention.kind)
        if own.num_heads % own.num_kv_heads:
            results.append(
                f"model.attention.pattern[{index}] = {dict(item)!r}: num_kv_heads = {own.num_kv_heads} must divide "
                f"num_heads = {own.num_heads}; an item that leaves one out has the model's"
            )
    return results


def _item(model: ConfigDict, name: str, field: str, value: Any) -> list[str]:
    kinds = set(model.position.pattern) or {model.position.kind}
    if field not in layers.FIELDS:
        return [
            f"{name} = {value!r}: unknown; must be one of {', '.join(layers.FIELDS)}{nearest(field, layers.FIELDS)}"
        ]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field == "theta":
        if not (whole or isinstance(value, float)) or not 1 < value < float("inf"):
            return [f"{name} = {value!r}: must be a number above 1"]
        if not kinds & {*layers.ROTATING}:
            field = "pattern" if model.position.pattern else "kind"
            other = f"model.position.{field} = {tuple(model.position.pattern) or model.position.kind!r}"
            return [f"{name} = {value!r}: no layer has rotary positions, with {other}"]
        return []
    if not whole or not 0 < value <= MOST_HEADS:
        return [f"{name} = {value!r}: must be a whole number above 0 and at most {MOST_HEADS}"]
    if model.attention.kind == "mla" and field != "num_heads":
        return [f"{name} = {value!r}: model.attention.kind = 'mla' has the dims of model.attention.mla in every layer"]
    return []


def _shared(model: ConfigDict) -> list[str]:
    """Returns what cannot be combined with keys and values that layers share, and with values that are keys."""
    attention, result = model.attention, []
    share, first = attention.kv_share, attention.kv_share_from
    if share == 1 and first:
        result.append(f"model.attention.kv_share_from = {first}: has no effect with model.attention.kv_share = 1")
    elif first >= model.num_layers:
        result.append(f"model.attention.kv_share_from = {first}: must be below model.num_layers = {model.num_layers}")
    elif share > model.num_layers - first:
        result.append(
            f"model.attention.kv_share = {share}: must be at most {model.num_layers - first}, the layers from "
            f"{first} (model.attention.kv_share_from) on"
        )
    for name, off in (("kv_share", 1), ("tie_kv", False)):
        if attention.qkv == "fused" and attention[name] != off:
            result.append(
                f"model.attention.qkv = 'fused': layers have no matrix of keys or no matrix of values with "
                f"model.attention.{name} = {attention[name]}; set split"
            )
    if share > 1 and attention.exclusive:
        result.append(
            f"model.attention.exclusive = True: layers that read another's values have none of their own tokens by "
            f"model.attention.kv_share = {share}; set false"
        )
    return result or _readable(model)


def _mixed_values(model: ConfigDict) -> list[str]:
    """What values that a layer mixes with others' have no place for; a pattern may still change theta."""
    attention, own = model.attention, layers.Heads.of(model)
    unlike = any(heads[:3] != own[:3] for heads in layers.heads(model))
    reasons = {
        f"layers that read another's have no values of their own by model.attention.kv_share = {attention.kv_share}": (
            attention.kv_share > 1
        ),
        "values are the keys by model.attention.tie_kv = True": attention.tie_kv,
        "values of layers differ in heads by model.attention.pattern": unlike,
    }
    return [
        f"model.attention.{name} = {attention[name]!r}: {reason}; set none"
        for name in ("value_residual", "value_embedding")
        if attention[name] != "none"
        for reason, applies in reasons.items()
        if applies
    ]


def _readable(model: ConfigDict) -> list[str]:
    """Layers that read the keys of another one need its positions, and a window that its cache can serve."""
    result = []
    kinds, windows, heads = layers.kinds(model), layers.windows(model), layers.heads(model)
    for layer, back in enumerate(layers.kv_back(model)):
        source, share = layer - back, f"model.attention.kv_share = {model.attention.kv_share}"
        if kinds[layer] != kinds[source]:
            result.append(
                f"model.position.pattern = {tuple(model.position.pattern)!r}: layer {layer} ({kinds[layer]}) reads the "
                f"keys of layer {source} ({kinds[source]}) by {share}; both must have the same positions"
            )
        kept_of = 3 if model.attention.kind == "mla" else 1  # latents are of no head
        if heads[layer][kept_of:] != heads[source][kept_of:]:
            mine, its = (", ".join(f"{n} = {v:g}" for n, v in zip(layers.FIELDS[1:], of[1:], strict=True))
                         for of in (heads[layer], heads[source]))  # fmt: skip
            result.append(
                f"model.attention.pattern: layer {layer} ({mine}) reads the keys of layer {source} ({its}) by {share}; "
                "both must have the same"
            )
        own, kept = windows[layer], windows[source]
        if kept is not None and (own is None or own > kept):
            result.append(
                f"model.attention.window_pattern = {tuple(model.attention.window_pattern)!r}: layer {layer} (window "
                f"{own or 'none'}) reads the keys of layer {source} (window {kept}) by {share}; its window must be at "
                f"most {kept}"
            )
    return result[:1]


def _latent(model: ConfigDict) -> list[str]:
    """What multi-head latent attention has no place for; windows, soft cap, sinks, scale and temperature apply."""
    attention, position, result = model.attention, model.position, []
    kind = "model.attention.kind = 'mla'"
    kinds = tuple(position.pattern) or (position.kind,)
    for other in sorted({*kinds} - {*ROTATION}):
        field = f"pattern = {kinds!r}" if position.pattern else f"kind = {other!r}"
        result.append(f"model.position.{field}: {kind} turns its shared key (rope) or has no positions (none)")
    if "rope" in kinds and position.rope.fraction != 1:
        result.append(
            f"model.position.rope.fraction = {position.rope.fraction}: must be 1 with {kind}, whose rotary width is "
            "model.attention.mla.rope_dim"
        )
    if model.num_kv_heads not in (None, model.num_heads):
        result.append(
            f"model.num_kv_heads = {model.num_kv_heads}: {kind} makes keys and values of all {model.num_heads} heads "
            "from one latent; leave it unset, and set model.attention.mla.kv_rank for the size of the cache"
        )
    if attention.qkv == "fused":
        result.append(f"model.attention.qkv = 'fused': {kind} has projections of its own; set split")
    if attention.qkv_bias:
        result.append(f"model.attention.qkv_bias = True: {kind} has no biases there; set false")
    if attention.qk_norm:
        result.append(f"model.attention.qk_norm = True: {kind} normalises its latents instead; set false")
    for name in ("value_residual", "value_embedding"):
        if attention[name] != "none":
            result.append(f"model.attention.{name} = {attention[name]!r}: {kind} makes values of a latent; set none")
    if attention.exclusive:
        result.append(f"model.attention.exclusive = True: {kind} keeps no values of single heads; set false")
    if attention.tie_kv:
        result.append(f"model.attention.tie_kv = True: {kind} makes keys and values of one latent already; set false")
    return result
