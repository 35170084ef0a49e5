"""Learning rates for sweep.py: two for each arm, one seed, half of the updates, other validation text."""

from typing import Any

HEADS, DIM, GROUPS, MLP = "model.num_heads", "model.head_dim", "model.num_kv_heads", "model.mlp_width"
FIXED: dict[str, Any] = {
    "model.width": 128,
    "model.num_layers": 2,
    "data.length": 256,
    "data.batch_size": 4,
    "budget.amount": 400,
    "optimizer.schedule": "wsd",
    "optimizer.warmup_steps": 50,
    "checkpoint.every_steps": 0,
    "log.tensorboard": False,
    "eval.every_steps": 0,
    "eval.multiples": (1,),
    "eval.tokens": 8192,
    "eval.loss_tokens": 65536,
    "eval.bootstrap": 200,
}
ARMS = [  # MHA, GQA of 2 groups, MQA; and MHA of fewer and of thinner heads with MQA's cache
    {HEADS: 8, DIM: 16, GROUPS: [8, 2, 1]},
    {HEADS: 1, DIM: 16, GROUPS: 1},
    {HEADS: 2, DIM: 8, GROUPS: 2},
    {HEADS: 4, DIM: 4, GROUPS: 4},
]


def name(config: Any) -> str:
    """Returns an arm's name: mha, gqa2, mqa, or its heads and their dims."""
    model = config.model
    if model.num_heads < 8:
        return f"h{model.num_heads}k{model.head_dim}"
    return {8: "mha", 1: "mqa"}.get(model.num_kv_heads, f"gqa{model.num_kv_heads}")


def get_sweep() -> dict:
    """Returns the sweep: 6 arms with two rates, 1 seed."""
    return dict(
        name="kv_groups_rates",
        title="Learning rates for key/value groups",
        base="configs/lm.py",
        fixed={**FIXED, "budget.amount": 200, "eval.split": "selection"},
        axes=[{"chain": ARMS}, {"optimizer.learning_rate": [2e-3, 4e-3]}],
        arm=lambda config: f"{name(config)}-lr{config.optimizer.learning_rate:g}",
        match=dict(equal="parameters", to="mha-lr0.002", by=MLP),
        seeds=[100],
        baseline="mha-lr0.002",
        evals=["loss"],
    )
