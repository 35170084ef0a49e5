"""Does the optimizer reorder head counts? The question of head_count.py, asked under each optimizer.

A number of heads is said to be better than another on the evidence of AdamW. Each optimizer is a study of its own, and
every arm of it has its own learning rate, chosen on a selection seed: optimizers need rates of different sizes, and one
rate for all would favour the optimizer and the arm that it suits best. Compare the order of h1, h4 and h16 between the
studies, not the losses of unequal optimizers alone: each was tuned in its rate and in nothing else.

Weight decay is multiplied by the learning rate, so that the optimizers do not decay by the same amount. 5 optimizers
of 3 arms: 60 selection runs and 45 of 3 seeds; for a first look add `--config.budget.amount=300`.
"""

RATES = {
    "adamw": [3e-4, 1e-3, 3e-3, 1e-2],
    "muon": [3e-3, 1e-2, 3e-2, 1e-1],  # of the matrices; AdamW's rate for the rest stays that of the base
    "lion": [1e-4, 3e-4, 1e-3, 3e-3],
    "adafactor": [3e-3, 1e-2, 3e-2, 1e-1],  # relative to a parameter's size
    "schedule_free_adamw": [1e-3, 3e-3, 1e-2, 3e-2],
}
FIXED = {"schedule_free_adamw": {"optimizer.schedule": "constant"}}


def get_sweep() -> dict:
    """Returns the sweep: 5 studies of 3 arms, 4 learning rates on 1 seed each, then 3 seeds."""
    studies = {kind: _study(kind) for kind in RATES}
    return dict(name="optimizers", title="Head counts under five optimizers", seeds=[0, 1, 2], studies=studies)


def _study(kind: str) -> dict:
    rate = "optimizer.muon.learning_rate" if kind == "muon" else "optimizer.learning_rate"
    return dict(
        title=f"Heads at a fixed width under {kind}",
        question="Does the order of head counts stay what it is under AdamW?",
        base="configs/lm.py",  # width 128: heads of 128, 32 and 8 dims
        fixed={"optimizer.kind": kind, **FIXED.get(kind, {})},
        axes=[{"model.num_heads": [1, 4, 16]}],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm=f"{kind}-h{{model.num_heads}}",
        baseline=f"{kind}-h4",
        select=dict(field=rate, values=RATES[kind], seeds=[100]),
        evals=["loss", "memory"],
    )
