"""GPT-2: LayerNorm, learned positions, matrices with our axis order (Conv1D), q, k, v concatenated in one."""

from convert.families.family import Family
from convert.families.gpt_neox import ACTIVATIONS
from convert.hf.keys import Always, Choice, HeadDim, Only, Same
from convert.hf.lengths import TableLength
from convert.hf.tensors import COLUMNS, PARTS, Tensor, linear, norm

NEW_FIRST = {"gelu_new": "gelu", **ACTIVATIONS}


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    pairs=(
        Same("vocab_size", "model.vocab_size"),
        Same("n_embd", "model.width", aliases=("hidden_size",)),
        Same("n_layer", "model.num_layers", aliases=("num_hidden_layers",)),
        Same("n_head", "model.num_heads", aliases=("num_attention_heads",)),
        HeadDim(spoken=False),
        Same("n_inner", "model.mlp_width", None, null=lambda ours: 4 * ours["model.width"]),
        Choice("activation_function", "model.mlp", NEW_FIRST, "gelu_new"),
        Same("layer_norm_epsilon", "model.norm_eps", 1e-5),
        Same("tie_word_embeddings", "model.tie_embeddings", True),
        Choice("scale_attn_weights", "model.attention.scale", {True: None, False: 1.0}, True),
        Only("scale_attn_by_inverse_layer_idx", False),
        TableLength("n_positions", 1024, aliases=("max_position_embeddings", "n_ctx")),
        Always(
            {
                "model.num_kv_heads": lambda ours: ours["model.num_heads"],
                "model.mlp_bias": True,
                "model.norm": "layernorm",
                "model.norm_bias": True,
                "model.residual": "serial",
                "model.attention.qkv": "fused",
                "model.attention.qkv_bias": True,
                "model.attention.out_bias": True,
                "model.position.kind": "learned",
            }
        ),
    ),
    tensors=(
        Tensor("wte.weight", ("embedding",), COLUMNS),
        Tensor("wpe.weight", ("schemes.learned.table",), COLUMNS),
        *norm("h.{}.ln_1", "blocks.attention_norm"),
        *norm("h.{}.ln_2", "blocks.mlp_norm"),
        *linear("h.{}.attn.c_attn", *PARTS, layout=COLUMNS),
        *linear("h.{}.attn.c_proj", "blocks.attention.out", layout=COLUMNS),
        *linear("h.{}.mlp.c_fc", "blocks.mlp.up", layout=COLUMNS),
        *linear("h.{}.mlp.c_proj", "blocks.mlp.down", layout=COLUMNS),
        *norm("ln_f", "norm"),
        Tensor("lm_head.weight", ("head",), COLUMNS),
    ),
    prefix="transformer.",
    embedding="wte.weight",
    ignored=(r"\.attn\.(bias|masked_bias)$",),
)
