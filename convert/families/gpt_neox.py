"""GPT-NeoX (and Pythia): LayerNorm, partial rotary, q, k, v of each head adjacent, parallel or serial residual."""

from convert.families.family import Family
from convert.hf.keys import Always, Choice, HeadDim, Only, Same
from convert.hf.lengths import Length
from convert.hf.rope import Rope
from convert.hf.tensors import BY_HEAD, COLUMNS, PARTS, Tensor, linear, norm

# transformers' names of activations without a gate.
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu_exact",
    "relu": "relu",
    "relu2": "relu2",
}


GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    pairs=(
        Same("vocab_size", "model.vocab_size"),
        Same("hidden_size", "model.width"),
        Same("intermediate_size", "model.mlp_width"),
        Same("num_hidden_layers", "model.num_layers"),
        Same("num_attention_heads", "model.num_heads"),
        HeadDim(spoken=False),
        Choice("hidden_act", "model.mlp", ACTIVATIONS, "gelu"),
        Same("layer_norm_eps", "model.norm_eps", 1e-5),
        Same("tie_word_embeddings", "model.tie_embeddings", False),
        Same("attention_bias", ("model.attention.qkv_bias", "model.attention.out_bias"), True),
        Choice("use_parallel_residual", "model.residual", {True: "parallel", False: "serial"}, True),
        Length(default=2048),
        Always(
            {
                "model.num_kv_heads": lambda ours: ours["model.num_heads"],
                "model.mlp_bias": True,
                "model.norm": "layernorm",
                "model.norm_bias": True,
                "model.attention.qkv": "fused",
                "model.attention.qk_norm": False,
            }
        ),
        Rope(fraction=0.25, theta_key="rotary_emb_base", fraction_key="rotary_pct", partial=True),
        Only("sliding_window", None, False),
    ),
    tensors=(
        Tensor("embed_in.weight", ("embedding",), COLUMNS),
        *norm("layers.{}.input_layernorm", "blocks.attention_norm"),
        *norm("layers.{}.post_attention_layernorm", "blocks.mlp_norm"),
        *linear("layers.{}.attention.query_key_value", *PARTS, layout=BY_HEAD),
        *linear("layers.{}.attention.dense", "blocks.attention.out"),
        *linear("layers.{}.mlp.dense_h_to_4h", "blocks.mlp.up"),
        *linear("layers.{}.mlp.dense_4h_to_h", "blocks.mlp.down"),
        *norm("final_layer_norm", "norm"),
        Tensor("embed_out.weight", ("head",), COLUMNS),
    ),
    prefix="gpt_neox.",
    head="embed_out.weight",
    embedding="embed_in.weight",
    renamed={"lm_head.weight": "embed_out.weight"},
    ignored=(r"\.attention\.(bias|masked_bias)$", r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$"),
)
