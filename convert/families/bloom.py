"""BLOOM: ALiBi, a LayerNorm on the embedding, q, k, v of each head adjacent."""

from convert.families.family import Family
from convert.hf.keys import Always, HeadDim, Only, Same
from convert.hf.lengths import Length
from convert.hf.tensors import BY_HEAD, COLUMNS, PARTS, Tensor, linear, norm

BLOOM = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    pairs=(
        Same("vocab_size", "model.vocab_size"),
        Same("hidden_size", "model.width", aliases=("n_embed", "n_embd")),
        Same("n_layer", "model.num_layers", aliases=("num_hidden_layers",)),
        Same("n_head", "model.num_heads", aliases=("num_attention_heads",)),
        HeadDim(spoken=False),
        Same("layer_norm_epsilon", "model.norm_eps", 1e-5),
        Same("tie_word_embeddings", "model.tie_embeddings", True),
        Only("apply_residual_connection_post_layernorm", False),
        Only("n_inner", None, False),
        # BLOOM has no table and declares no length; its first configs called the training length seq_length
        Length("seq_length", 2048),
        Always(
            {
                "model.num_kv_heads": lambda ours: ours["model.num_heads"],
                "model.mlp": "gelu",  # the tanh form
                "model.mlp_width": lambda ours: 4 * ours["model.width"],
                "model.mlp_bias": True,
                "model.norm": "layernorm",
                "model.norm_bias": True,
                "model.embedding_norm": True,
                "model.residual": "serial",
                "model.attention.qkv": "fused",
                "model.attention.qkv_bias": True,
                "model.attention.out_bias": True,
                "model.position.kind": "alibi",
            }
        ),
    ),
    tensors=(
        Tensor("word_embeddings.weight", ("embedding",), COLUMNS),
        *norm("word_embeddings_layernorm", "embedding_norm"),
        *norm("h.{}.input_layernorm", "blocks.attention_norm"),
        *norm("h.{}.post_attention_layernorm", "blocks.mlp_norm"),
        *linear("h.{}.self_attention.query_key_value", *PARTS, layout=BY_HEAD),
        *linear("h.{}.self_attention.dense", "blocks.attention.out"),
        *linear("h.{}.mlp.dense_h_to_4h", "blocks.mlp.up"),
        *linear("h.{}.mlp.dense_4h_to_h", "blocks.mlp.down"),
        *norm("ln_f", "norm"),
        Tensor("lm_head.weight", ("head",), COLUMNS),
    ),
    prefix="transformer.",
    embedding="word_embeddings.weight",
)
