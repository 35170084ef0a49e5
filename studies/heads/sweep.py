"""Head counts at a fixed width of 128, at two budgets, with RoPE and without positions. See protocol.md."""

from typing import Any

from studies.heads.rates import FIXED

RATES = {1: 1e-3, 2: 2e-3, 4: 2e-3, 8: 2e-3, 16: 4e-3}  # from rates.py
TEXT: dict[str, Any] = dict(
    base="configs/lm.py",
    derived={
        "model.head_dim": lambda config: config.model.width // config.model.num_heads,
        "optimizer.learning_rate": lambda config: RATES[config.model.num_heads],
    },
    care=0.01,
    evals=["loss"],
)


def get_sweep() -> dict:
    """Returns the sweep: 5 arms at 2 budgets with RoPE, 3 arms without positions."""
    fixed = {**FIXED, "eval.split": "test", "eval.tokens": 8192}
    rope = TEXT | dict(
        title="Heads at a fixed width",
        question="At equal width, parameters and FLOPs, which number of heads has the lowest validation loss?",
        fixed={name: value for name, value in fixed.items() if name != "budget.amount"},
        axes=[{"model.num_heads": [1, 2, 4, 8, 16]}],
        arm="h{model.num_heads}",
        seeds=list(range(5)),
        baseline="h8",
        ladder=dict(by="budget.amount", values=[300, 600], branches=True),
    )
    nope = TEXT | dict(
        title="Heads at a fixed width, without positions",
        question="Do thin heads lose because RoPE has few frequencies in them?",
        fixed={**fixed, "model.position.kind": "none"},
        axes=[{"model.num_heads": [1, 8, 16]}],
        arm="nope-h{model.num_heads}",
        seeds=list(range(3)),
        baseline="nope-h8",
    )
    return dict(name="heads", title="Heads at a fixed width of 128", studies={"heads": rope, "heads_nope": nope})
