"""Parameters, FLOPs and KV bytes by formula, from config.model alone; no array is made, and JAX is not started.

D width, L layers, H query heads, G KV heads, K head_dim, F mlp_width, V vocabulary, T length. Latent attention (MLA): K
is nope_dim + rope_dim, Kv the values' dim.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.rules.attention import score_dims
from models import pattern

N_COUNTS = (
    "every weight that multiplies an activation: attention and MLP matrices of all layers and the output matrix "
    "(also where it is the embedding's transpose); not the embedding table, positional schemes, norms and biases"
)


def parameters(config: ConfigDict) -> dict[str, int]:
    """Returns the number of parameters by part of a resolved config.model, vocab_size included.

    Parts: embedding, position (of positional schemes: tables, biases' numbers and MLPs), attention, mlp, norm, head (0
    where tied); `total`, their sum; and `non_embedding`, the total without embedding, position and head.
    """
    width, layers = config.width, config.num_layers
    attention, norms = config.attention, 2 * _norm(config)
    heads, groups = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    biases = (heads + 2 * groups) * attention.qkv_bias + width * attention.out_bias
    biases += config.num_heads * attention.sinks
    mlp_biases = (config.mlp_width * _inputs(config) + width) * config.mlp_bias
    if attention.qk_norm:
        norms += 2 * config.head_dim
    if attention.kind == "mla":
        norms += attention.mla.kv_rank + (attention.mla.query_rank or 0)
    parts = {
        "embedding": config.vocab_size * width,
        "position": _positions(config),
        "attention": layers * (_attention_matrices(config) + biases),
        "mlp": layers * (_mlp_matrices(config) + mlp_biases),
        "norm": layers * norms + _norm(config) * (1 + config.embedding_norm),
        "head": 0 if config.tie_embeddings else config.vocab_size * width,
    }
    blocks = parts["attention"] + parts["mlp"] + parts["norm"]
    return {**parts, "total": sum(parts.values()), "non_embedding": blocks}


def flops_per_token(config: ConfigDict, length: int) -> dict[str, Any]:
    """Returns the FLOPs of one training step for each token, forward and backward: 6 N + 12 L H K T.

    PaLM's count (arXiv 2204.02311, appendix B), with H K and not D, and with no half for the causal mask. A layer with
    a window counts min(T, window) for its T. Latent attention (MLA) counts 6 L H (K + Kv) T, as it trains, with keys
    and values of every head.

    Returns:
        value, formula, N, and N_counts, which says what N counts.
    """
    matrices = config.num_layers * (_attention_matrices(config) + _mlp_matrices(config))
    n = matrices + config.vocab_size * config.width
    windows = [plan.window for plan in pattern.plans(config)]
    keys = sum(min(length, window or length) for window in windows)
    whole = keys == config.num_layers * length
    products = "6 {}H (K + Kv)" if config.attention.kind == "mla" else "12 {}H K"
    return {
        "value": 6 * n + 6 * config.num_heads * sum(score_dims(config)) * keys,
        "formula": f"6 N + {products.format('L ' if whole else '')} "
        + ("T" if whole else "sum over layers of min(T, window)"),
        "N": n,
        "N_counts": N_COUNTS,
    }


def kv_bytes_per_token(config: ConfigDict, bytes_per_element: int) -> int:
    """Returns the bytes a token takes in the KV cache while all layers hold it: 2 L G K bytes_per_element.

    Stored in 8 bits (`attention.kv_storage`) it is one byte an element, and 4 more a token and head for the scale.
    """
    from models import storage  # it brings JAX

    return config.num_layers * sum(storage.token_bytes(config, bytes_per_element).values())


def kv_cache_bytes(config: ConfigDict, bytes_per_element: int, *, batch: int, capacity: int) -> dict[str, int]:
    """Returns the bytes of a KV cache of `batch` rows of `capacity` tokens: of `values` and of their `scales`.

    A layer with a window holds min(capacity, window) tokens. int32 positions, segments and the like are not counted.
    """
    from models import storage

    tokens = batch * sum(min(capacity, plan.window or capacity) for plan in pattern.plans(config))
    return {name: tokens * size for name, size in storage.token_bytes(config, bytes_per_element).items()}


def _positions(config: ConfigDict) -> int:
    """Returns the parameters of the positional schemes, of those with layers of their own for each such layer."""
    position, heads = config.position, config.num_heads
    hidden = position.fire.hidden
    once = {"learned": position.max_length * config.width, "t5": position.t5.buckets * heads}
    each = {
        "kerple_log": 2 * heads,
        "kerple_power": 2 * heads,
        "fire": 2 * hidden + hidden * heads + heads + 2,
        "cope": position.cope.rows * config.head_dim,
    }
    kinds = [plan.position for plan in pattern.plans(config)]
    return sum(once.get(kind, 0) for kind in set(kinds)) + sum(each.get(kind, 0) for kind in kinds)


def _attention_matrices(config: ConfigDict) -> int:
    if config.attention.kind == "gqa":
        return config.width * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    mla, (key_dim, value_dim) = config.attention.mla, score_dims(config)
    queries = config.num_heads * key_dim
    queries *= config.width if mla.query_rank is None else mla.query_rank
    queries += config.width * (mla.query_rank or 0)
    keys_and_values = config.width * (mla.kv_rank + mla.rope_dim)
    keys_and_values += mla.kv_rank * config.num_heads * (mla.nope_dim + value_dim)
    return queries + keys_and_values + config.num_heads * value_dim * config.width


def _inputs(config: ConfigDict) -> int:
    return 2 if config.mlp == "swiglu" else 1


def _mlp_matrices(config: ConfigDict) -> int:
    return config.width * config.mlp_width * (_inputs(config) + 1)


def _norm(config: ConfigDict) -> int:
    return config.width * (1 + (config.norm == "layernorm" and config.norm_bias))
