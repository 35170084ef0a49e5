"""Llama and related families: RMSNorm, SwiGLU, half-split RoPE, three projections.

They differ in biases, windows, norms and defaults.
"""

from convert.families.family import Family
from convert.hf.keys import Always, Choice, HeadDim, Only, Pair, Same
from convert.hf.layers import NopeLayers, OneWindow, SomeWindows, from_layer, without_rope
from convert.hf.lengths import Length
from convert.hf.rope import Rope
from convert.hf.tensors import COLUMNS, PARTS, Tensor, linear, norm

QKV_BIAS, OUT_BIAS = "model.attention.qkv_bias", "model.attention.out_bias"
GATED = {"silu": "swiglu", "swish": "swiglu"}


def sizes(
    kv_heads: int | None, head_dim: HeadDim, *, eps: float = 1e-6, tied: bool = False, length: int
) -> tuple[Pair, ...]:
    """Returns the pairs common to all of them.

    Args:
        kv_heads: default for an absent key; None: as many as heads. Null always means that.
        head_dim: the family's rule.
        eps: default of rms_norm_eps.
        tied: default of tie_word_embeddings.
        length: default of max_position_embeddings.
    """

    def all_heads(ours: dict) -> int:
        return ours["model.num_heads"]

    return (
        Same("vocab_size", "model.vocab_size"),
        Same("hidden_size", "model.width"),
        Same("intermediate_size", "model.mlp_width"),
        Same("num_hidden_layers", "model.num_layers"),
        Same("num_attention_heads", "model.num_heads"),
        Same("num_key_value_heads", "model.num_kv_heads", kv_heads, null=all_heads),
        head_dim,
        Choice("hidden_act", "model.mlp", GATED, "silu"),
        Same("rms_norm_eps", "model.norm_eps", eps),
        Same("tie_word_embeddings", "model.tie_embeddings", tied),
        Length(default=length),
        Always({"model.norm": "rmsnorm", "model.norm_bias": False, "model.residual": "serial"}),
    )


def biases(attention: bool, mlp: bool) -> tuple[Pair, ...]:
    """Returns the pairs of biases of the four projections and of the MLP: set by a key, or absent."""
    return (
        Same("attention_bias", (QKV_BIAS, OUT_BIAS), False) if attention else Only("attention_bias", False, False),
        Same("mlp_bias", "model.mlp_bias", False) if mlp else Only("mlp_bias", False, False),
        *(() if attention else (Always({QKV_BIAS: False, OUT_BIAS: False}),)),
        *(() if mlp else (Always({"model.mlp_bias": False}),)),
    )


def block(*, fused: bool = False) -> tuple[Tensor, ...]:
    """Returns the tensors; `fused` has q, k, v in one and gate, up in one (Phi-3)."""
    names: dict[str, tuple[str, ...]] = {"self_attn.o_proj": ("blocks.attention.out",)}
    names |= {"mlp.down_proj": ("blocks.mlp.down",)}
    if fused:
        names |= {"self_attn.qkv_proj": PARTS, "mlp.gate_up_proj": ("blocks.mlp.gate", "blocks.mlp.up")}
    else:
        names |= {f"self_attn.{letter}_proj": (part,) for letter, part in zip("qkv", PARTS, strict=True)}
        names |= {"mlp.gate_proj": ("blocks.mlp.gate",), "mlp.up_proj": ("blocks.mlp.up",)}
    norms = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
    }
    return (
        Tensor("embed_tokens.weight", ("embedding",), COLUMNS),
        *(tensor for name, ours in norms.items() for tensor in norm(f"layers.{{}}.{name}", f"blocks.{ours}")),
        *(tensor for name, ours in names.items() for tensor in linear(f"layers.{{}}.{name}", *ours)),
        *norm("norm", "norm"),
        Tensor("lm_head.weight", ("head",), COLUMNS),
    )


def family(name: str, architecture: str, *pairs: Pair, fused: bool = False) -> Family:
    """Returns one of these families."""
    return Family(
        name=name,
        architecture=architecture,
        pairs=pairs,
        tensors=block(fused=fused),
        prefix="model.",
        ignored=(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$",),
    )


PLAIN = Always({"model.attention.qk_norm": False})
NO_WINDOW = (Only("sliding_window", None, False), Only("use_sliding_window", False, False))

LLAMA = family(
    "llama",
    "LlamaForCausalLM",
    *sizes(None, HeadDim(divides=True), length=2048),
    *biases(True, True),
    PLAIN,
    Rope(),
    *NO_WINDOW,
)

MISTRAL = family(
    "mistral",
    "MistralForCausalLM",
    *sizes(8, HeadDim(), length=131072),
    *biases(False, False),
    PLAIN,
    Rope(),
    OneWindow(4096),
)

QWEN2 = family(
    "qwen2",
    "Qwen2ForCausalLM",
    *sizes(32, HeadDim(usual=True), length=32768),
    Only("attention_bias", None, False),
    Only("mlp_bias", False, False),
    Always({QKV_BIAS: True, OUT_BIAS: False, "model.mlp_bias": False}),
    PLAIN,
    Rope(),
    SomeWindows(4096, from_layer),
)

QWEN3 = family(
    "qwen3",
    "Qwen3ForCausalLM",
    *sizes(32, HeadDim(default=128), length=32768),
    *biases(True, False),
    Always({"model.attention.qk_norm": True}),
    Rope(),
    SomeWindows(4096, from_layer),
)

SMOLLM3 = family(
    "smollm3",
    "SmolLM3ForCausalLM",
    *sizes(4, HeadDim(), tied=True, length=32768),
    *biases(True, True),
    PLAIN,
    Rope(theta=2000000.0),
    NopeLayers(),
    SomeWindows(None, without_rope, first=False),
)
