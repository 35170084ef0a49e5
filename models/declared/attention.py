"""Kinds of attention: the parameters, FLOPs and cached numbers of each. The modules are in `models`.

D width, H query heads, G key/value heads, K dims of queries and keys, Kv of values.
"""

import dataclasses
from collections.abc import Callable

from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from models.declared import switches
from models.declared.flops import Flops
from models.declared.parameter import KV, QUERY, Matrix, Parameter, Parameters, linear, nested, norm, vector

Kept = dict[str, tuple[int, int]]  # name -> (heads, numbers per head) that a layer caches of each token


@dataclasses.dataclass(frozen=True)
class AttentionKind:
    """All that the rest of the project asks of a kind of attention, beside its module."""

    title: str  # in tables and docs
    fields: tuple[str, ...]  # of config.model.attention that it alone reads
    parameters: Callable[[ConfigDict], Parameters]  # config.model -> of one layer
    score_dims: Callable[[ConfigDict], tuple[int, int]]  # config.model -> (K, Kv) as it trains
    kept: Callable[[ConfigDict], Kept]  # config.model -> what the cache keeps
    of_kv: tuple[str, ...]  # the parameters that what the cache keeps is made with: not in layers that read another's
    surgery: bool  # heads can be joined and taken out (convert/heads.py)
    words: str  # FLOPs of training for each key that a query sees, of one layer
    weighting: bool = False  # its weights are no plain softmax of each head's scores


def _shared(model: ConfigDict, values: int) -> Parameters:
    """Declares what every kind has: the output projection, and sinks where the config wants them."""
    bias, into = model.attention.out_bias, ("heads", "embed")
    out = linear(
        {"attention.out": model.width}, values, part="attention", axes=into, bias=bias, residual=True,
        heads=(QUERY,), head_axis=-2,
    )  # fmt: skip
    # Zero, where gpt-oss's are drawn: a head begins with the weight of one average key on nothing.
    sinks = {"sinks": vector(model.num_heads, 0.0, part="attention", heads=(QUERY,))}
    return {**nested({"out": out}), **(sinks if model.attention.sinks else {}), **switches.parameters(model)}


def _gqa(model: ConfigDict) -> Parameters:
    attention, width = model.attention, model.width
    heads, groups = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    sizes = {"query": (heads, QUERY), "key": (groups, KV)}
    sizes |= {} if attention.tie_kv else {"value": (groups, KV)}
    bias, norms = attention.qkv_bias, {}
    if attention.qkv == "fused":
        # Side by side, queries, keys and values cannot be cut by heads: that matrix is whole on every device.
        outputs = {f"attention.{name}": size for name, (size, _) in sizes.items()}
        owned = tuple(owner for _, owner in sizes.values())
        into = {"qkv": linear(outputs, width, part="attention", axes=("embed", None), bias=bias, heads=owned)}
    else:
        into = {
            name: linear(
                {f"attention.{name}": size}, width, part="attention", bias=bias, heads=(owner,),
                axes=("embed", "heads" if owner == QUERY else "kv_heads"),
            )
            for name, (size, owner) in sizes.items()
        }  # fmt: skip
    if attention.qk_norm:
        norms = {"query_norm": norm(model.head_dim), "key_norm": norm(model.head_dim)}
    return {**nested({**into, **norms}), **_shared(model, heads)}


def _differential(model: ConfigDict) -> Parameters:
    dim = model.head_dim
    # The authors draw them at a deviation of 0.1, which `fan_in` gives.
    lambdas = Parameter(
        shape=(4, dim),
        start=Matrix((("attention.lambdas", dim),), 100),
        part="attention",
        group="vector",
        decay=False,
    )
    return {**_gqa(model), "lambdas": lambdas, **nested({"head_norm": norm(2 * dim)})}


def _differential_kept(model: ConfigDict) -> Kept:
    return {"k": (model.num_kv_heads, model.head_dim), "v": (model.num_kv_heads // 2, 2 * model.head_dim)}


def _mla(model: ConfigDict) -> Parameters:
    mla, width, heads = model.attention.mla, model.width, model.num_heads
    key_dim, value_dim = _mla_dims(model)

    def into(outputs: dict[str, int], inputs: int, axes: tuple[str | None, str | None], *owned: str) -> Parameters:
        return linear(outputs, inputs, part="attention", axes=axes, bias=False, heads=owned)

    parts, rank = {}, mla.query_rank
    if rank is not None:
        parts["query_down"] = into({"attention.query_down": rank}, width, ("embed", None))
        parts["query_norm"] = norm(rank)
    of = ("embed" if rank is None else None, "heads")
    parts["query"] = into({"attention.query": heads * key_dim}, width if rank is None else rank, of, QUERY)
    down = {"attention.kv_down": mla.kv_rank, "attention.key_rope": mla.rope_dim}
    parts["kv_down"] = into(down, width, ("embed", None))
    parts["kv_norm"] = norm(mla.kv_rank)
    up = (None, "heads")
    parts["key_up"] = into({"attention.key_up": heads * mla.nope_dim}, mla.kv_rank, up, QUERY)
    parts["value_up"] = into({"attention.value_up": heads * value_dim}, mla.kv_rank, up, QUERY)
    return {**nested(parts), **_shared(model, heads * value_dim)}


def _mla_dims(model: ConfigDict) -> tuple[int, int]:
    return model.attention.mla.nope_dim + model.attention.mla.rope_dim, model.attention.mla.value_dim


def _gqa_kept(model: ConfigDict) -> Kept:
    names = ("k",) if model.attention.tie_kv else ("k", "v")
    return {name: (model.num_kv_heads, model.head_dim) for name in names}


def _mla_kept(model: ConfigDict) -> Kept:
    return {"c_kv": (1, model.attention.mla.kv_rank), "k_rope": (1, model.attention.mla.rope_dim)}


KINDS: dict[str, AttentionKind] = {
    "gqa": AttentionKind(
        title="multi-head, grouped or multi-query",
        fields=("qkv", "qkv_bias", "qk_norm", "tie_kv"),
        parameters=_gqa,
        score_dims=lambda model: (model.head_dim, model.head_dim),
        kept=_gqa_kept,
        of_kv=("key", "value", "key_norm"),
        surgery=True,
        words="12 H K",
    ),
    "mla": AttentionKind(
        title="multi-head latent",
        fields=("mla.",),
        parameters=_mla,
        score_dims=_mla_dims,
        kept=_mla_kept,
        of_kv=("kv_down", "kv_norm"),
        surgery=False,
        words="6 H (K + Kv)",
    ),
    "differential": AttentionKind(
        title="differential",
        fields=(),
        parameters=_differential,
        # The maps of a pair are subtracted first, so that H/2 of them meet values of 2 K dims.
        score_dims=lambda model: (model.head_dim, model.head_dim),
        kept=_differential_kept,
        of_kv=("key", "value", "key_norm"),
        surgery=False,
        words="12 H K",
        weighting=True,
    ),
}


def weighting_of(model: ConfigDict) -> str | None:
    """Returns the field that makes weights of scores by more than a plain softmax; None: none does."""
    if kind_of(model).weighting:
        return f"model.attention.kind = {model.attention.kind!r}"
    return next((one.weighting for one in switches.active(model) if one.weighting), None)


def kind_of(model: ConfigDict) -> AttentionKind:
    """Returns the kind of attention of a config.model.

    Raises:
        ConfigError: an unknown kind.
    """
    name = model.attention.kind
    if name not in KINDS:
        raise ConfigError(f"model.attention.kind = {name!r}: must be one of {', '.join(KINDS)}{nearest(name, KINDS)}")
    return KINDS[name]


def parameters(model: ConfigDict, *, own_kv: bool) -> Parameters:
    """Returns the declarations of one layer's attention, one with keys and values of its own or not."""
    kind = kind_of(model)
    every = kind.parameters(model)
    return every if own_kv else {path: one for path, one in every.items() if path.split(".")[0] not in kind.of_kv}


def flops(model: ConfigDict) -> Flops:
    """Returns the FLOPs of a layer's scores and sums of values: 2 H (K + Kv) forward for each key that a query sees."""
    kind = kind_of(model)
    return Flops(pair=2 * model.num_heads * sum(kind.score_dims(model)), words=f"{kind.words} keys")
