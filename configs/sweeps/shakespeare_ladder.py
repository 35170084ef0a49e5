"""Rotary positions against learned ones over four budgets: how much compute is the change worth, and does it last?

nanoGPT's CPU setting on tiny Shakespeare (configs/shakespeare_char.py), with `--config.data.path=input.txt`; without
it on the built-in corpus. One run of 400 steps serves all four budgets by branches. `python -m report.ladder DIR`.
"""


def get_sweep() -> dict:
    """Returns the sweep: 2 arms, 4 budgets, 3 seeds."""
    return dict(
        name="shakespeare_ladder",
        title="Rotary positions over four budgets",
        question="How much compute are rotary positions worth against learned ones, and does the gain last?",
        base="configs/shakespeare_char.py",
        fixed={
            "optimizer.schedule": "wsd",
            "optimizer.warmup_steps": 20,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 50,
            "eval.tokens": 16384,
        },
        axes=[{"model.position.kind": ["learned", "rope"]}],
        arm="{model.position.kind}",
        ladder=dict(by="budget.amount", values=[50, 100, 200, 400], branches=True),
        seeds=[0, 1, 2],
        baseline="learned",
        evals=["loss"],
    )
