"""How many heads, at a fixed width: one wide head, many thin ones, and what lies between.

At num_heads * head_dim = width neither parameters nor FLOPs change with the number of heads, so that arms differ in
nothing but how attention is divided. Vaswani et al. (2017, table 3A) found one head and very thin heads worse than a
plateau between; with the same question on your own data and width, change `base`. Hours on two cores; for a first
look add `--config.budget.amount=300`.
"""


def get_sweep() -> dict:
    """Returns the sweep: 5 arms, 3 seeds."""
    return dict(
        name="head_count",
        title="Heads at a fixed width",
        question="At equal width, parameters and FLOPs, does the number of heads change validation loss?",
        base="configs/lm.py",  # width 128: heads of 128, 64, 32, 16 and 8 dims
        axes=[{"model.num_heads": [1, 2, 4, 8, 16]}],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm="h{model.num_heads}",
        seeds=[0, 1, 2],
        baseline="h4",
        evals=["loss", "throughput", "memory"],
    )
