"""Two true things within ten minutes on two cores: how many heads, and what RoPE scaling does past the window.

The first study trains one byte-level model for each head count on the Python standard library's sources, at fixed
width, parameters and FLOPs. The second trains a model that really retrieves (key-value recall, grown from 15 tokens to
63), then stretches its window at evaluation only.
"""


def get_sweep() -> dict:
    """Returns the sweep: see `sweeps/expand.py` for the form."""
    heads = dict(
        title="Heads at a fixed width",
        question="At equal width, parameters and FLOPs, does splitting attention into heads lower the loss on text?",
        base="configs/lm.py",
        fixed={
            "model.width": 64,
            "model.num_layers": 2,
            "data.length": 128,
            "data.batch_size": 16,
            "budget.amount": 400,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 200,
            "eval.multiples": (1, 2),
            "eval.throughput.repeats": 3,
        },
        axes=[{"model.num_heads": [1, 2, 4]}],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm="heads{model.num_heads}",
        seeds=[0, 1, 2],
        baseline="heads1",
        evals=["loss", "throughput", "memory"],
    )
    window = dict(
        title="Past the window",
        question="What is left of recall beyond the training length, and which RoPE scaling keeps it without training?",
        base="configs/retrieval.py",
        axes=[],
        arm="recall",
        seeds=[0, 1],
        baseline="recall",
        evals=["loss", "retrieval", "memory"],
    )
    return dict(name="demo", title="Ablax demo", studies={"heads": heads, "window": window})
