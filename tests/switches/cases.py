"""Every switch of positions and attention, as changes of one small model."""

from typing import Any

from ml_collections import ConfigDict

from configs import base, cli, fields, validate

LENGTH = 20  # tokens; scalings begin at ORIGINAL
LONG = 72  # tokens that are more than one block
ORIGINAL = 8
BATCH = 2
SMALL: dict[str, Any] = {
    "model.width": 24,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
    "model.head_dim": 8,  # not width / num_heads
    "model.mlp_width": 16,
    "model.vocab_size": 32,
    "model.dtype": "float32",
    "model.scan_layers": "no",
    "model.position.max_length": 80,
    "model.position.t5.buckets": 8,
    "model.position.t5.max_distance": 12,
    "model.position.fire.threshold": 6.0,
    "model.position.fire.hidden": 8,
    "model.position.cope.rows": 5,
    "model.position.xpos.base": 16.0,
    "data.length": 32,
    "data.weights.text": 0.0,
    "data.weights.mqar": 1.0,
    "data.mqar.vocab_size": 32,
    "data.mqar.pairs": 1,
}

POSITION, SCALING, ATTENTION = "model.position.", "model.position.rope.scaling.", "model.attention."


def _kind(kind: str, **more: Any) -> dict[str, Any]:
    return {f"{POSITION}kind": kind, **{POSITION + name.replace("__", "."): value for name, value in more.items()}}


def _scaling(kind: str, **more: Any) -> dict[str, Any]:
    given = {"kind": kind, "factor": 4.0, "original_length": ORIGINAL, **more}
    return {SCALING + name: value for name, value in given.items()}


def _attention(**more: Any) -> dict[str, Any]:
    return {ATTENTION + name.replace("__", "."): value for name, value in more.items()}


def _heat(kind: str, **more: Any) -> dict[str, Any]:
    return {f"{POSITION}temperature.{name}": value for name, value in {"kind": kind, "length": 6, **more}.items()}


MLA = {"model.num_kv_heads": None, **_attention(kind="mla", mla__kv_rank=12, mla__rope_dim=4, mla__value_dim=6)}
LISTS: dict[str, Any] = {"short_factor": (1.0, 1.1, 1.3, 1.7), "long_factor": (1.5, 2.0, 4.0, 5.0)}
YARN: dict[str, Any] = dict(beta_fast=1.0, beta_slow=0.1)  # so that the ramp lies within so few tokens

# name -> changes; in the order of the table.
CASES: dict[str, dict[str, Any]] = {
    "none (NoPE)": _kind("none"),
    "learned": _kind("learned"),
    "sinusoidal": _kind("sinusoidal"),
    "RoPE, half": _kind("rope"),
    "RoPE, interleaved": _kind("rope", rope__pairing="interleaved"),
    "RoPE, partial": _kind("rope", rope__fraction=0.5),
    "RoPE, partial, interleaved": _kind("rope", rope__fraction=0.5, rope__pairing="interleaved"),
    "p-RoPE": _kind("p_rope", rope__fraction=0.5),
    "xPos": _kind("xpos"),
    "ALiBi": _kind("alibi"),
    "ALiBi, 6 heads": {**_kind("alibi"), "model.num_heads": 6},
    "T5 bias": _kind("t5"),
    "KERPLE, log": _kind("kerple_log"),
    "KERPLE, power": _kind("kerple_power"),
    "FIRE": _kind("fire"),
    "CoPE": _kind("cope"),
    "NoPE every third layer": {"model.num_layers": 3, f"{POSITION}pattern": ("rope", "rope", "none")},
    "schemes by layer": {"model.num_layers": 3, f"{POSITION}pattern": ("fire", "rope", "cope")},
    "scaling linear": _scaling("linear"),
    "scaling ntk": _scaling("ntk"),
    "scaling ntk_by_parts": _scaling("ntk_by_parts", **YARN),
    "scaling dynamic": _scaling("dynamic"),
    "scaling yarn": _scaling("yarn", **YARN),
    "scaling yarn, not truncated": _scaling("yarn", truncate=False, **YARN),
    "scaling yarn, both mscales": _scaling("yarn", mscale=0.7, mscale_all_dim=1.2, **YARN),
    "scaling yarn, its factor given": _scaling("yarn", attention_factor=1.4, **YARN),
    "scaling yarn, partial": {**_scaling("yarn", **YARN), f"{POSITION}rope.fraction": 0.5},
    "scaling llama3": _scaling("llama3"),
    "scaling longrope": _scaling("longrope", **LISTS),
    "scaling longrope, its factor given": _scaling("longrope", attention_factor=1.3, **LISTS),
    "p-RoPE, scaling dynamic": {**_kind("p_rope", rope__fraction=0.5), **_scaling("dynamic")},
    "temperature log_n": _heat("log_n"),
    "temperature llama4, on NoPE layers": {f"{POSITION}pattern": ("rope", "none"), **_heat("llama4")},
    "temperature ministral3": _heat("ministral3"),
    "MHA": {"model.num_kv_heads": 4},
    "GQA": {"model.num_kv_heads": 2},
    "MQA": {"model.num_kv_heads": 1},
    "MLA": MLA,
    "MLA, latent queries": {**MLA, **_attention(mla__query_rank=10)},
    "MLA, yarn with both mscales": {**MLA, **_scaling("yarn", mscale=0.7, mscale_all_dim=0.7, **YARN)},
    "K = V": _attention(tie_kv=True),
    "K = V, QK-norm, dynamic": {**_attention(tie_kv=True, qk_norm=True), **_scaling("dynamic")},
    "KV of two layers (CLA)": {"model.num_layers": 4, **_attention(kv_share=2)},
    "KV of one layer in the second half (YOCO)": {
        "model.num_layers": 4,
        **_attention(kv_share=2, kv_share_from=2, window_pattern=(5, 5, 0, 0)),
    },
    "K = V of three layers, a window": {"model.num_layers": 4, **_attention(kv_share=3, tie_kv=True, window=5)},
    "MLA, latents of two layers": {**MLA, **_attention(kv_share=2)},
    "QK-norm": _attention(qk_norm=True),
    "soft cap": _attention(soft_cap=1.5),
    "attention sinks": _attention(sinks=True),
    "window": _attention(window=5),
    "window by layer": {"model.num_layers": 3, **_attention(window_pattern=(5, 3, 0))},
    "heads, KV heads and head dim by layer": {
        "model.num_layers": 3,
        **_attention(pattern=({}, {"num_heads": 2, "num_kv_heads": 1, "head_dim": 12, "theta": 100.0}), sinks=True),
    },
    "heads by layer, ALiBi and T5": {
        "model.num_layers": 4,
        f"{POSITION}pattern": ("alibi", "t5"),
        **_attention(pattern=({}, {}, {"num_heads": 2}), window_pattern=(0, 5)),
    },
    "theta by layer, shared keys, yarn": {
        "model.num_layers": 4,
        **_attention(pattern=({"theta": 50.0}, {"num_heads": 2, "theta": 50.0}, {}, {}), kv_share=2, tie_kv=True),
        **_scaling("yarn", **YARN),
    },
    "fused QKV": _attention(qkv="fused"),
    "fused QKV, biases": _attention(qkv="fused", qkv_bias=True, out_bias=True),
    "scale 1/head_dim": _attention(scale_rule="mup"),
    "scale a number": _attention(scale=0.5),
    "output gate by head": _attention(gate__kind="head"),
    "output gate by element": _attention(gate__kind="element"),
    "output gate by head, of 5 dims": _attention(gate__kind="head", gate__dims=5),
    "MLA, output gate by element": {**MLA, **_attention(gate__kind="element")},
    "value residual, fixed": _attention(value_residual="fixed"),
    "value residual, learned": {"model.num_layers": 3, **_attention(value_residual="learned")},
    "value embeddings, shared": _attention(value_embedding="shared", qkv="fused"),
    "value embeddings by layer": _attention(value_embedding="layer"),
    "differential attention, both value mixes, layers compiled once": {
        "model.num_layers": 3,
        "model.scan_layers": "yes",
        **_attention(kind="differential", value_residual="learned", value_embedding="layer"),
    },
    "exclusive self-attention (XSA)": _attention(exclusive=True),
    "talking heads": _attention(talking_heads=True),
    "talking heads, ALiBi, soft cap, sinks": {
        **_kind("alibi"),
        **_attention(talking_heads=True, soft_cap=1.5, sinks=True),
    },
    "MLA, talking heads, sigmoid": {**MLA, **_attention(talking_heads=True, weights__kind="sigmoid")},
    "sigmoid attention": _attention(weights__kind="sigmoid"),
    "sigmoid attention, window": _attention(weights__kind="sigmoid", weights__sigmoid_bias=-1.0, window=5),
    "top-k softmax": _attention(weights__kind="top_k", weights__top_k=3),
    "selective attention": _attention(weights__kind="selective"),
    "selective attention, ALiBi, soft cap, sinks, XSA": {
        **_kind("alibi"),
        **_attention(weights__kind="selective", soft_cap=1.5, sinks=True, exclusive=True),
    },
    "differential attention": _attention(kind="differential"),
    "differential attention, fused, QK-norm, gate": {
        "model.num_kv_heads": 4,
        "model.num_layers": 3,
        **_attention(kind="differential", qkv="fused", qk_norm=True, gate__kind="head", window_pattern=(5, 0)),
    },
    "many at once": {
        "model.num_layers": 3,
        f"{POSITION}pattern": ("alibi", "rope", "none"),
        **_attention(window_pattern=(6, 0, 4), sinks=True, soft_cap=2.0, qk_norm=True, qkv="fused"),
        **_heat("ministral3"),
        **_scaling("dynamic"),
    },
}

# A kind that needs no setting of its own has a row under its name.
CASES |= {
    kind: _kind(kind)
    for kind in fields.choices("model.position.kind")
    if kind not in {case.get(f"{POSITION}kind", "rope") for case in CASES.values()}
}


def config_of(name: str, **more: Any) -> ConfigDict:
    """Returns a case's resolved config.model; `more` changes fields of the model, dots written `__`."""
    config = base.get_config()
    further = {f"model.{field.replace('__', '.')}": value for field, value in more.items()}
    cli.apply(config, {**SMALL, **CASES[name], **further})
    return validate.resolve(config).model
