"""Learning rates for sweep.py: four rates for each head count, one seed that the comparison does not use.

The rates are scored on the half of the validation text that the comparison does not read (`eval.split`).
"""

from typing import Any

FIXED: dict[str, Any] = {  # 600 updates of 16 rows of 64 bytes, as in sweep.py
    "data.length": 64,
    "data.batch_size": 16,
    "budget.amount": 600,
    "optimizer.schedule": "wsd",
    "optimizer.warmup_steps": 50,
    "checkpoint.every_steps": 0,
    "log.tensorboard": False,
    "eval.every_steps": 0,
    "eval.multiples": (1,),
    "eval.tokens": 65536,
    "eval.loss_tokens": 65536,
    "eval.bootstrap": 200,
}


def get_sweep() -> dict:
    """Returns the sweep: 18 arms, 1 seed, half of the comparison's updates."""
    return dict(
        name="heads_rates",
        title="Learning rates for head counts",
        base="configs/lm.py",
        fixed={**FIXED, "budget.amount": 300, "eval.split": "selection"},
        axes=[{"model.num_heads": [1, 2, 4, 8, 16]}, {"optimizer.learning_rate": [1e-3, 2e-3, 4e-3, 8e-3]}],
        where="model.num_heads in (1, 4, 16) or optimizer.learning_rate < 8e-3",
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm="h{model.num_heads}-lr{optimizer.learning_rate}",
        seeds=[100],
        baseline="h4-lr0.004",
        evals=["loss"],
    )
