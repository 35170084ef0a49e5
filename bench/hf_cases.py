"""The models of `bench/hf_round_trip.py`: checkpoints made by transformers, and runs of ours that it should load."""

from dataclasses import dataclass, field
from typing import Any

VOCAB = 96


@dataclass(frozen=True)
class Theirs:
    """A random checkpoint of a family: the arguments of its config class, and the schema of its rotary keys."""

    name: str
    model_type: str
    config: dict[str, Any]
    schema: str = "v5"


@dataclass(frozen=True)
class Own:
    """A random run of ours: config fields that differ from the defaults, and the family it should be exported as."""

    name: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)


def _llama(width: int, layers: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"vocab_size": VOCAB, "intermediate_size": 2 * width, "num_key_value_heads": groups, **sizes, **more}


def _rope(kind: str = "default", theta: float = 10000.0, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **numbers}}


def _original(length: int, factor: float) -> dict[str, Any]:
    return {"factor": factor, "original_max_position_embeddings": length}


LLAMA3 = _rope("llama3", 5e5, **_original(32, 8.0), low_freq_factor=1.0, high_freq_factor=4.0)
YARN = {**_rope("yarn", **_original(16, 4.0)), "max_position_embeddings": 64}
LONG: dict[str, Any] = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.5, 4.0]}
LONGROPE = {**_rope("longrope", **LONG, original_max_position_embeddings=32), "original_max_position_embeddings": 32}
NEOX = {"vocab_size": VOCAB, "num_hidden_layers": 2}
GPT2 = {"vocab_size": VOCAB, "n_positions": 128, "n_layer": 2}

THEIRS = (
    Theirs("MHA", "llama", _llama(32, 2, 4, 4, max_position_embeddings=64)),
    Theirs("GQA, llama3", "llama", _llama(48, 2, 6, 2, head_dim=16, max_position_embeddings=256, **LLAMA3)),
    Theirs("GQA, llama3", "llama", _llama(64, 3, 8, 4, max_position_embeddings=256, **LLAMA3), "v4"),
    Theirs("MQA, linear", "llama", _llama(40, 1, 5, 1, tie_word_embeddings=True, **_rope("linear", factor=4.0))),
    Theirs("MQA, linear", "llama", _llama(40, 1, 5, 1, tie_word_embeddings=True, **_rope("linear", factor=4.0)), "v4"),
    Theirs("dynamic", "llama", _llama(32, 2, 4, 2, max_position_embeddings=32, **_rope("dynamic", factor=2.0))),
    Theirs("dynamic", "llama", _llama(32, 2, 4, 2, max_position_embeddings=32, **_rope("dynamic", factor=2.0)), "v4"),
    Theirs("biases, yarn", "llama", _llama(32, 2, 2, 2, attention_bias=True, mlp_bias=True, **YARN)),
    Theirs("window 8", "mistral", _llama(32, 2, 4, 2, sliding_window=8)),
    Theirs("no window, head dim 6", "mistral", _llama(48, 3, 6, 3, head_dim=6, sliding_window=None), "v4"),
    Theirs("bias", "qwen2", _llama(32, 2, 4, 2)),
    Theirs("bias, yarn, tied", "qwen2", _llama(48, 3, 6, 1, tie_word_embeddings=True, **YARN), "v4"),
    Theirs("QK-norm, yarn", "qwen3", _llama(32, 2, 4, 1, head_dim=16, **YARN)),
    Theirs("QK-norm", "qwen3", _llama(64, 1, 8, 8, head_dim=8, **_rope(theta=1e6)), "v4"),
    Theirs("NoPE every 2nd", "smollm3", _llama(32, 4, 4, 2, no_rope_layer_interval=2)),
    Theirs("NoPE every 4th", "smollm3", _llama(48, 8, 6, 6, no_rope_layer_interval=4, **_rope(theta=5e6)), "v4"),
    Theirs("longrope", "phi3", _llama(32, 2, 4, 2, max_position_embeddings=64, **LONGROPE)),
    Theirs("longrope", "phi3", _llama(32, 2, 4, 2, max_position_embeddings=64, **LONGROPE), "v4"),
    Theirs("partial rotary", "phi3", _llama(64, 3, 4, 4, **_rope(partial_rotary_factor=0.5))),
    Theirs("parallel", "gpt_neox", {**NEOX, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
           | _rope(partial_rotary_factor=0.5)),
    Theirs("parallel, quarter", "gpt_neox", {**NEOX, "hidden_size": 48, "intermediate_size": 80,
           "num_attention_heads": 3} | _rope(partial_rotary_factor=0.25), "v4"),
    Theirs("serial", "gpt_neox", {**NEOX, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 8,
           "use_parallel_residual": False} | _rope(partial_rotary_factor=1.0)),
    Theirs("learned", "gpt2", {**GPT2, "n_embd": 32, "n_head": 4}),
    Theirs("learned, inner 72", "gpt2", {**GPT2, "n_embd": 48, "n_head": 3, "n_inner": 72}),
    Theirs("ALiBi, 4 heads", "bloom", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Theirs("ALiBi, 6 heads", "bloom", {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    Theirs("ALiBi, 12 heads", "bloom", {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 12}),
)  # fmt: skip

SCALING = "model.position.rope.scaling"
BIASES = {"model.attention.qkv_bias": True, "model.attention.out_bias": True, "model.mlp_bias": True}
LAYERNORM = {"model.norm": "layernorm", "model.norm_bias": True, "model.attention.qkv": "fused", "model.mlp": "gelu"}

OWN = (
    Own("default", "llama"),
    Own("fused, GQA, yarn", "llama", {"model.attention.qkv": "fused", "model.num_kv_heads": 2,
        f"{SCALING}.kind": "yarn", f"{SCALING}.factor": 4.0, f"{SCALING}.original_length": 16}),
    Own("interleaved pairs", "llama", {"model.position.rope.pairing": "interleaved", "model.num_kv_heads": 1}),
    Own("window 8", "mistral", {"model.attention.window": 8}),
    Own("QK-norm, head dim 6", "qwen3", {"model.attention.qk_norm": True, "model.head_dim": 6}),
    Own("NoPE every 2nd", "smollm3", {"model.position.pattern": ("rope", "none")}),
    Own("partial, parallel", "gpt_neox", {**LAYERNORM, **BIASES, "model.residual": "parallel",
        "model.position.rope.fraction": 0.5, "model.tie_embeddings": False}),
    Own("learned", "gpt2", {**LAYERNORM, **BIASES, "model.position.kind": "learned"}),
    Own("ALiBi", "bloom", {**LAYERNORM, **BIASES, "model.position.kind": "alibi", "model.embedding_norm": True,
        "model.mlp_width": 128}),
)  # fmt: skip
