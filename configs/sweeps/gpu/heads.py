"""How many heads at GPT-2's size, on one GPU.

At num_heads * head_dim = width neither parameters nor FLOPs change with the number of heads. Heads are 128 dims at
most, so that every arm runs cuDNN's attention and times compare too. Budget: 20 tokens a parameter. The text and
GPT-2's tokenizer come from the command line, as for the base.
"""


def get_sweep() -> dict:
    """Returns the sweep: 4 arms, 3 seeds."""
    return dict(
        name="gpu_heads",
        title="Heads at GPT-2's size",
        question="At equal width, parameters and FLOPs, does the number of heads change the loss of a 124M model?",
        base="configs/gpt2_124m.py",  # width 768: heads of 128, 64, 32 and 16 dims
        fixed={"budget.kind": "tokens", "budget.amount": 2.5e9, "optimizer.warmup_steps": 500},
        axes=[{"model.num_heads": [6, 12, 24, 48]}],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm="h{model.num_heads}",
        seeds=[0, 1, 2],
        baseline="h12",
        evals=["loss", "throughput", "memory"],
    )
