"""What is allowed of attention: combinations of its switches."""

from collections.abc import Callable

from ml_collections import ConfigDict

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


def outputs(model: ConfigDict) -> tuple[int, int]:
    """Returns (heads, dims of each) of what a layer attends to, of a resolved config.model."""
    return model.num_heads, score_dims(model)[1]


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config's attention, a line each; the fields by themselves must be sound."""
    attention, result = config.model.attention, []
    if attention.scale is not None and attention.scale_rule != "auto":
        result.append(
            f"model.attention.scale = {attention.scale}: model.attention.scale_rule = {attention.scale_rule!r} sets "
            "the scale already; leave one of them out"
        )
    result += _switches(config.model)
    return [*result, *_latent(config.model)] if attention.kind == "mla" else result


def _switches(model: ConfigDict) -> list[str]:
    gate, result = model.attention.gate, []
    if gate.dims is not None and gate.kind == "none":
        result.append(f"model.attention.gate.dims = {gate.dims}: has no effect with model.attention.gate.kind = 'none'")
    elif gate.dims is not None and gate.dims > model.width:
        result.append(f"model.attention.gate.dims = {gate.dims}: must be at most model.width = {model.width}")
    return result


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
    if attention.exclusive:
        result.append(f"model.attention.exclusive = True: {kind} keeps no values of single heads; set false")
    return result
