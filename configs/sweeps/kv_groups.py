"""How many key/value heads for 8 query heads: MQA (1), GQA (2 and 4), MHA (8).

Fewer groups shrink the KV cache in proportion, and with it what decoding must read; they also remove parameters from
the key and value projections. Those go into a wider MLP here, so that every arm has MHA's parameters and FLOPs to
within 0.5% (without `match` the arms differ in size, which the report says). The expected effect on loss is small
(thousandths of a bit per byte for each halving): it takes several seeds to see.
"""


def get_sweep() -> dict:
    """Returns the sweep: 4 arms, 3 seeds."""
    return dict(
        name="kv_groups",
        title="Key/value groups of 8 heads",
        question="What do fewer key/value heads cost in validation loss, and what do they save in decoding and cache?",
        base="configs/lm.py",
        fixed={
            "model.num_heads": 8,
            "eval.throughput.new_tokens": 128,  # decoding is where the groups tell
        },
        axes=[{"model.num_kv_heads": [1, 2, 4, 8]}],
        arm="kv{model.num_kv_heads}",
        match=dict(equal="parameters", to="kv8", by="model.mlp_width"),
        seeds=[0, 1, 2],
        baseline="kv8",
        evals=["loss", "throughput", "memory"],
    )
