"""Whole configs for Hypothesis: valid by construction, and ways to spoil them. Imports no JAX."""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import base, fields, validate
from configs.rules import attention, positions

Changes = dict[str, Any]

TINY: Changes = {
    "model.width": 16,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
    "model.mlp_width": 24,
    "model.vocab_size": 32,
    "data.weights.text": 0.0,
    "data.weights.mqar": 1.0,
    "data.mqar.vocab_size": 32,
    "data.mqar.pairs": 1,
    "data.length": 16,
}
ORIGINAL = 5  # L0 of scalings and temperatures: short, so that a row of a few tokens passes it


def config_of(changes: Mapping[str, Any]) -> ConfigDict:
    """Returns a whole config, tiny but for the changes, not yet resolved.

    Raises:
        ConfigError: an unknown field, or a value of the wrong type.
    """
    config = base.get_config()
    for name, value in {**TINY, **changes}.items():
        fields.set_field(config, name, value)
    return config


def _shape(pick: Callable[..., Any]) -> Changes:
    groups = pick(1, 2, 3)
    return {
        "model.num_layers": pick(2, 1, 3),
        "model.num_kv_heads": groups,
        "model.num_heads": groups * pick(2, 1),
        "model.head_dim": pick(8, 4, 6),
        "model.width": pick(16, 8, 14),
    }


def _block(pick: Callable[..., Any]) -> Changes:
    norm = pick("rmsnorm", "layernorm")
    return {
        "model.mlp": pick(*fields.choices("model.mlp")),
        "model.mlp_bias": pick(False, True),
        "model.norm": norm,
        "model.norm_bias": norm == "layernorm" and pick(False, True),
        "model.embedding_norm": pick(False, True),
        "model.residual": pick("serial", "parallel"),
        "model.tie_embeddings": pick(True, False),
        "model.logit_soft_cap": pick(None, 5.0),
        "model.scan_layers": pick("auto", "yes"),
        "model.remat": pick("none", "block", "attention", "projections"),
        "data.packing": pick("contiguous", "segments"),
    }


def _attention(pick: Callable[..., Any]) -> Changes:
    scale, latent = pick(None, 0.4), pick(False, False, True)
    kind = "mla" if latent else pick("gqa", "gqa", "differential")
    results = {
        "model.attention.qkv": pick("split", "fused"),
        "model.attention.qkv_bias": pick(False, True),
        "model.attention.out_bias": pick(False, True),
        "model.attention.qk_norm": pick(False, True),
        "model.attention.soft_cap": pick(None, 4.0),
        "model.attention.scale": scale,
        "model.attention.scale_rule": "auto" if scale else pick("auto", "sqrt", "mup"),
        "model.attention.window": pick(None, 3),
        "model.attention.window_pattern": pick((), (2, 0), (0, 4, 3)),
        "model.attention.sinks": pick(False, True),
        "model.attention.kind": kind,
    }
    if latent:
        results |= {
            "model.num_kv_heads": None,
            "model.attention.qkv": "split",
            "model.attention.qkv_bias": False,
            "model.attention.qk_norm": False,
            "model.attention.mla.kv_rank": pick(None, 10),
            "model.attention.mla.query_rank": pick(None, 6),
            "model.attention.mla.nope_dim": pick(None, 3),
            "model.attention.mla.rope_dim": pick(4, 2, 6),
            "model.attention.mla.value_dim": pick(None, 5),
        }
    if kind == "differential":
        results |= {"model.num_kv_heads": 2, "model.num_heads": pick(4, 2)}
    results |= _switches(
        pick, kind, sinks=results["model.attention.sinks"], split=results["model.attention.qkv"] == "split"
    )
    if results["model.attention.weights.kind"] == "selective":
        results |= {"model.attention.window": None, "model.attention.window_pattern": ()}
    return results


def _switches(pick: Callable[..., Any], kind: str, *, sinks: bool, split: bool) -> Changes:
    gate, pairs = pick("none", "head", "element"), kind == "differential"
    others = ("top_k", *(() if sinks else ("sigmoid",)), *(("selective",) if kind == "gqa" else ()))
    weights = "softmax" if pairs else pick("softmax", "softmax", *others)
    mixes = kind != "mla"
    return {
        "model.attention.value_residual": pick("none", "fixed", "learned") if mixes and split else "none",
        "model.attention.value_embedding": pick("none", "shared", "layer") if mixes else "none",
        "model.attention.weights.kind": weights,
        "model.attention.weights.top_k": pick(2, 5) if weights == "top_k" else None,
        "model.attention.weights.sigmoid_bias": pick(None, -1.0) if weights == "sigmoid" else None,
        "model.attention.talking_heads": not pairs and weights != "selective" and pick(False, False, True),
        "model.attention.gate.kind": gate,
        "model.attention.gate.dims": None if gate == "none" else pick(None, 3),
        "model.attention.exclusive": kind == "gqa" and pick(False, True),
    }


def _sharing(pick: Callable[..., Any], drawn: Changes, kinds: set[str]) -> Changes:
    """Keys and values that layers share, or that are one, and heads by layer."""
    layers = drawn["model.num_layers"]
    alike = len(kinds) == 1 and not drawn["model.attention.window_pattern"] and not drawn["model.attention.exclusive"]
    mixes = any(drawn[f"model.attention.{name}"] != "none" for name in ("value_residual", "value_embedding"))
    selective = drawn["model.attention.weights.kind"] == "selective"
    share = pick(*range(1, layers + 1)) if alike and not mixes and not selective else 1
    first = pick(*range(layers - share + 1)) if share > 1 else 0
    tied = drawn["model.attention.kind"] == "gqa" and not mixes and pick(False, False, True)
    other = {} if mixes else {"num_heads": 2 * (drawn["model.num_kv_heads"] or drawn["model.num_heads"])}
    other |= {"theta": 70.0} if kinds & {*positions.ROTATING} and share == 1 else {}
    results = {
        "model.attention.pattern": pick((), (), ({}, other)) if drawn["model.attention.kind"] != "differential" else (),
        "model.attention.kv_share": share,
        "model.attention.kv_share_from": first,
        "model.attention.tie_kv": tied,
    }
    return results | ({"model.attention.qkv": "split"} if tied or share > 1 else {})


def _kernel(pick: Callable[..., Any], drawn: Changes, kinds: set[str]) -> Changes:
    able = ["auto", "reference"]
    whole = drawn["model.attention.weights.kind"] != "softmax" or drawn["model.attention.talking_heads"]
    if "cope" not in kinds and not whole and drawn["model.attention.kind"] != "differential":
        able += ["blocked"] if drawn["model.attention.soft_cap"] else ["blocked", "xla"]
    return {"model.attention.kernel": pick(*able)}


def _positions(pick: Callable[..., Any], layers: int, latent: bool) -> tuple[Changes, set[str]]:
    """Returns fields of the kinds, one or several by layer, and the kinds."""
    mixed = attention.ROTATION if latent else [kind for kind in positions.KINDS if kind not in positions.ABSOLUTE]
    if pick(True, False):
        pattern = tuple(pick(*mixed) for _ in range(pick(2, 3)))
        kinds, result = set(pattern), {"model.position.pattern": pattern, "model.position.kind": pick(*mixed)}
    else:
        kind = pick(*(mixed if latent else positions.KINDS))
        kinds, result = {kind}, {"model.position.kind": kind}
        pattern = (kind,)
    result |= {
        "model.position.max_length": pick(16, 24) if "learned" in kinds else None,
        "model.position.xpos.base": pick(8.0, 512.0),
        "model.position.t5.buckets": pick(6, 8),
        "model.position.t5.max_distance": pick(5, 9),
        "model.position.fire.hidden": pick(8, 3),
        "model.position.fire.threshold": pick(3.0, 512.0),
        "model.position.cope.rows": pick(3, 16),
    }
    temperature = pick("none", "none", "log_n", "llama4", "ministral3")
    nope = "none" in pattern[:layers]
    return {
        **result,
        "model.position.temperature.kind": temperature,
        "model.position.temperature.length": pick(None, 2, 3),
        "model.position.temperature.layers": pick("auto", "nope", "all") if nope else "all",
    }, kinds


def _rope(pick: Callable[..., Any], kinds: set[str], head_dim: int, latent: bool) -> Changes:
    """`head_dim` is what may turn of it: mla's rope_dim."""
    rotation = kinds & {"rope", "xpos"}
    shares = [share for share in (1.0, 0.5, 0.75) if not rotation or int(head_dim * share) in (2, 4, 6, 8)]
    share = 1.0 if latent else pick(*shares)
    width = min(int(head_dim * share) if rotation else head_dim, head_dim)
    scalings = [
        kind
        for kind in positions.SCALINGS
        if (kinds & {*positions.SCALED} or kind == "none")
        and (width > 2 or kind not in ("ntk", "dynamic"))
        and ("xpos" not in kinds or not positions.SCALINGS[kind].by_length)
        # One list serves one rotary width.
        and (kind != "longrope" or "p_rope" not in kinds or not rotation or share == 1)
    ]
    scaling = pick(*scalings)
    name = "model.position.rope.scaling"
    results = {
        "model.position.rope.theta": pick(10000.0, 50.0),
        "model.position.rope.fraction": share,
        "model.position.rope.pairing": pick("half", "interleaved"),
        f"{name}.kind": scaling,
        f"{name}.original_length": pick(ORIGINAL, None),
        f"{name}.factor": 1.0 if scaling == "none" else pick(4.0, 1.5, 1.0),
    }
    if scaling == "yarn":
        scales = pick((None, None), (1.0, 0.5))
        results |= {
            f"{name}.truncate": pick(True, False),
            f"{name}.beta_fast": pick(32.0, 2.0),
            f"{name}.attention_factor": pick(None, 1.2),
            f"{name}.mscale": scales[0],
            f"{name}.mscale_all_dim": scales[1],
        }
    if scaling == "longrope":
        pairs = (head_dim if kinds & {"p_rope"} and not kinds & {"rope"} else width) // 2
        results |= {
            f"{name}.short_factor": tuple(1 + 0.1 * i for i in range(pairs)),
            f"{name}.long_factor": tuple(1.5 + i for i in range(pairs)),
            f"{name}.attention_factor": pick(None, 1.2),
        }
    return results


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    """Draws what a whole valid config changes, by dotted field: shape, block, attention, positions, packing."""

    def pick(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    result = _shape(pick) | _block(pick) | _attention(pick)
    latent = result["model.attention.kind"] == "mla"
    placed, kinds = _positions(pick, result["model.num_layers"], latent)
    result |= placed
    rotation = result["model.attention.mla.rope_dim"] if latent else result["model.head_dim"]
    result |= _kernel(pick, result, kinds) | _rope(pick, kinds, rotation, latent)
    return result | _sharing(pick, result, kinds)


@st.composite
def configs(draw: st.DrawFn) -> ConfigDict:
    """Draws whole valid configs, resolved."""
    return validate.resolve(config_of(draw(changes())))


# A field alone, refused whatever the others are: candidates, of which each rule refuses some.
CANDIDATES = (0, -1, 1, 2, 3, 2**63, 0.0, -1.0, -0.5, 0.5, 1.0, 1.5, "nonesuch")


def alone() -> list[tuple[str, Any]]:
    """Returns (field, a value that is never allowed), several for every field that has a rule of its own."""
    kinds = fields.types()
    results: list[tuple[str, Any]] = []
    for name, field in base.SCHEMA.items():
        candidates = ((0,), (-1,), (1.5,), ("nonesuch",)) if field.type is tuple else CANDIDATES
        results += [
            (name, value)
            for value in candidates
            if type(value) is field.type and field.problem(name, value) is not None
        ]
    results += [
        (name, value) for name, kind in kinds.items() if kind is float for value in (float("nan"), float("inf"))
    ]
    # Wrong types: text for a number, a number for text, a fraction for a whole number, a number for a list.
    wrong: dict[type, tuple[Any, ...]] = {int: ("4", 1.5, True), float: ("4", True), bool: (1, "yes"), str: (1, True)}
    results += [(name, value) for name, kind in kinds.items() for value in wrong.get(kind, (1, "ab"))]
    results += [("model.attention.window_pattern", (4, -1)), ("model.position.pattern", ("rope", "nonesuch"))]
    return results


MLA: Changes = {"model.attention.kind": "mla", "model.position.pattern": ("rope", "none")}
PAIRS: Changes = {"model.attention.kind": "differential"}
# Fields that do not go together -> the field the message must name.
TOGETHER: list[tuple[Changes, str]] = [
    ({"model.num_heads": 6, "model.num_kv_heads": 4}, "model.num_kv_heads"),
    ({"model.width": 16, "model.num_heads": 3, "model.num_kv_heads": 3, "model.head_dim": None}, "model.num_heads"),
    ({"model.norm": "rmsnorm", "model.norm_bias": True}, "model.norm_bias"),
    ({"model.vocab_size": 8}, "model.vocab_size"),
    ({"model.attention.scale": 0.4, "model.attention.scale_rule": "mup"}, "model.attention.scale_rule"),
    ({"model.attention.kind": "mla", "model.position.pattern": ("rope", "alibi")}, "model.position.pattern"),
    ({**MLA, "model.position.rope.fraction": 0.5}, "model.position.rope.fraction"),
    ({**MLA, "model.num_heads": 4, "model.num_kv_heads": 2}, "model.num_kv_heads"),
    ({**MLA, "model.attention.qkv": "fused"}, "model.attention.qkv"),
    ({**MLA, "model.attention.qkv_bias": True}, "model.attention.qkv_bias"),
    ({**MLA, "model.attention.qk_norm": True}, "model.attention.qk_norm"),
    ({**MLA, "model.attention.exclusive": True}, "model.attention.exclusive"),
    ({**PAIRS, "model.attention.exclusive": True}, "model.attention.exclusive"),
    ({**PAIRS, "model.attention.talking_heads": True}, "model.attention.talking_heads"),
    ({**PAIRS, "model.num_heads": 3, "model.num_kv_heads": 1}, "model.num_kv_heads"),
    ({"model.attention.weights.kind": "softmax", "model.attention.weights.top_k": 3}, "model.attention.weights.top_k"),
    ({"model.attention.weights.kind": "top_k", "model.attention.weights.top_k": None}, "model.attention.weights.top_k"),
    ({"model.attention.talking_heads": True, "model.attention.kernel": "blocked"}, "model.attention.kernel"),
    ({"model.attention.gate.kind": "none", "model.attention.gate.dims": 3}, "model.attention.gate.dims"),
    ({"model.attention.gate.kind": "head", "model.attention.gate.dims": 99}, "model.attention.gate.dims"),
    ({**MLA, "model.attention.mla.rope_dim": 5}, "model.attention.mla.rope_dim"),
    ({**MLA, "model.attention.tie_kv": True}, "model.attention.tie_kv"),
    ({"model.attention.tie_kv": True, "model.attention.qkv": "fused"}, "model.attention.qkv"),
    ({"model.attention.value_embedding": "shared", "model.attention.tie_kv": True}, "model.attention.value_embedding"),
    ({"model.attention.value_residual": "fixed", "model.num_layers": 2, "model.attention.kv_share": 2},
     "model.attention.value_residual"),
    ({"model.attention.value_residual": "learned", "model.num_heads": 2, "model.num_kv_heads": 2,
      "model.attention.pattern": ({"num_heads": 4},)}, "model.attention.value_residual"),
    ({"model.attention.kv_share": 9, "model.attention.kv_share_from": 0}, "model.attention.kv_share"),
    ({"model.attention.kv_share": 1, "model.attention.kv_share_from": 1}, "model.attention.kv_share_from"),
    ({"model.attention.pattern": ({"num_head": 2},)}, "model.attention.pattern[0].num_head"),
    ({"model.attention.pattern": ({}, {"num_heads": 5, "num_kv_heads": 3})}, "model.attention.pattern[1]"),
    ({"data.batch_size": 6, "data.micro_batches": 4}, "data.micro_batches"),
    ({"data.weights.mqar": 0.0}, "data.weights"),
    ({"data.mqar.pairs": 5}, "data.mqar.pairs"),
    ({"data.path": "a.txt", "data.tfds.name": "b"}, "data.tfds.name"),
    ({"data.source": "files"}, "data.path"),
    ({"data.source": "tfds"}, "data.tfds.name"),
    ({"data.curriculum": ({"steps": 5},)}, "data.curriculum[0].length"),
    ({"data.curriculum": ({"steps": 5, "lenght": 8, "length": 8},)}, "data.curriculum[0].lenght"),
    ({"data.curriculum": ({"steps": 5000, "length": 16},)}, "budget.amount"),
    ({"model.position.pattern": ("rope", "learned")}, "model.position.pattern"),
    ({"model.position.pattern": ("rope",), "model.head_dim": 7}, "model.head_dim"),
    ({"model.position.pattern": ("xpos",), "model.position.rope.fraction": 0.1}, "model.position.rope.fraction"),
    ({"model.position.pattern": ("p_rope",), "model.position.rope.fraction": 0.1}, "model.position.rope.fraction"),
    ({"model.position.pattern": ("rope",), "model.position.rope.theta": 1.0}, "model.position.rope.theta"),
    ({"model.position.pattern": ("alibi",), "model.position.rope.scaling.kind": "yarn"},
     "model.position.rope.scaling.kind"),
    ({"model.position.pattern": ("rope",), "model.position.rope.scaling.kind": "none",
      "model.position.rope.scaling.factor": 2.0}, "model.position.rope.scaling.factor"),
    ({"model.position.pattern": ("rope",), "model.head_dim": 2, "model.position.rope.fraction": 1.0,
      "model.position.rope.scaling.kind": "ntk"}, "model.position.rope.scaling.kind"),
    ({"model.position.pattern": ("rope",), "model.position.rope.scaling.kind": "longrope",
      "model.position.rope.scaling.short_factor": (1.0,) * 9}, "model.position.rope.scaling.short_factor"),
    ({"model.position.pattern": ("rope",), "model.position.rope.scaling.kind": "yarn",
      "model.position.rope.scaling.beta_slow": 99.0}, "model.position.rope.scaling.beta_fast"),
    ({"model.position.pattern": ("rope",), "model.position.rope.scaling.kind": "llama3",
      "model.position.rope.scaling.high_freq_factor": 0.5}, "model.position.rope.scaling.high_freq_factor"),
    ({"model.position.pattern": ("learned",), "model.position.max_length": 8}, "model.position.max_length"),
    ({"model.position.pattern": ("xpos",), "model.position.xpos.base": 0.1}, "model.position.xpos.base"),
    ({"model.position.pattern": ("t5",), "model.position.t5.buckets": 32, "model.position.t5.max_distance": 16},
     "model.position.t5.max_distance"),
    ({"model.position.pattern": ("cope",), "model.attention.kernel": "blocked"}, "model.attention.kernel"),
    ({"model.position.pattern": ("rope",), "model.position.temperature.kind": "llama4",
      "model.position.temperature.layers": "auto"}, "model.position.temperature.layers"),
]  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[Changes, str]:
    """Draws a whole valid config with one fault, and the field that the refusal must name."""
    whole = draw(changes())
    kind = draw(st.sampled_from(("alone", "together", "unknown")))
    if kind == "alone":
        name, value = draw(st.sampled_from(alone()))
        return {**whole, name: value}, name
    if kind == "together":
        extra, name = draw(st.sampled_from(TOGETHER))
        if "model.position.pattern" in extra:  # a theta of a layer that no longer rotates is a fault of its own
            whole |= {"model.attention.pattern": ()}
        return {**whole, **extra}, name
    name = draw(st.sampled_from(sorted(fields.types())))
    at = draw(st.integers(0, len(name) - 1))
    slip = name[:at] + draw(st.sampled_from("xyz_")) + name[at + 1 :]
    return {**whole, slip: draw(st.sampled_from((1, "a", 0.5)))}, slip
