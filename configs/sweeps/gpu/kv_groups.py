"""How many key/value heads for 16 query heads at 360M parameters, on one GPU: MQA (1), GQA (2, 4, 8), MHA (16).

What the key and value projections lose goes into a wider MLP, so that every arm has MHA's parameters to within 0.5%.
The text and GPT-2's tokenizer come from the command line, as for the base.
"""


def get_sweep() -> dict:
    """Returns the sweep: 5 arms, 3 seeds."""
    return dict(
        name="gpu_kv_groups",
        title="Key/value groups of 16 heads",
        question="What do fewer key/value heads cost a 360M model in loss, and save in decoding and cache?",
        base="configs/llama_350m.py",
        fixed={"eval.throughput.new_tokens": 128},  # decoding is where the groups tell
        axes=[{"model.num_kv_heads": [1, 2, 4, 8, 16]}],
        arm="kv{model.num_kv_heads}",
        match=dict(equal="parameters", to="kv16", by="model.mlp_width", multiple_of=16),
        seeds=[0, 1, 2],
        baseline="kv16",
        evals=["loss", "throughput", "memory"],
    )
