"""What heads, KV groups, positions and RoPE scalings do to loss and retrieval, within ten minutes on two cores.

The first study trains one byte-level model for each head count on the Python standard library's sources, at fixed
width, parameters and FLOPs. The second trains models that really retrieve (key-value recall, grown from 15 tokens to
63 in half the batch and half the updates of configs/retrieval.py): other head counts, one key/value head for both
heads, and other positions, each asked within the window and beyond it. The window of its baseline is also stretched, at
evaluation only.

What the first study claims is of 250 updates and of one learning rate for all head counts, and its question says so:
more heads were behind at 250 updates and ahead at 600, and the best rate differs between head counts. studies/heads has
rates of their own and two budgets. Recall past the window is asked once, from the row's beginning, beside the local
baseline.
"""

from typing import Any

SCALINGS = ("linear", "ntk", "yarn")


def get_sweep() -> dict:
    """Returns the sweep: see `sweeps/spec/expand.py` for the form."""
    heads = dict(
        title="Heads at a fixed width, after 250 updates",
        question="At equal width, parameters and FLOPs, after 250 updates at one learning rate, does splitting "
        "attention into heads lower the loss on text?",
        base="configs/lm.py",
        fixed={
            "model.width": 64,
            "model.num_layers": 2,
            "data.length": 128,
            "data.batch_size": 16,
            "budget.amount": 250,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 125,
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
    recall = dict(
        title="Recall within the window and past it",
        question="Which heads, KV groups and positions learn recall in 300 updates, and what comes from past it?",
        base="configs/retrieval.py",
        fixed={
            "data.curriculum": (
                {"steps": 200, "length": 15, "pairs": 4, "batch_size": 128},
                {"steps": 50, "length": 31, "pairs": 8, "batch_size": 64},
            ),
            "data.batch_size": 32,
            "budget.amount": 300,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 0,
            "eval.multiples": (1, 2, 4),
            "eval.scalings": (),
            "eval.retrieval.generate": False,
        },
        axes=[
            {
                "chain": [
                    {"model.num_heads": 2, "eval.scalings": SCALINGS, "eval.multiples": (1, 2, 4, 8)},
                    {"model.num_heads": [1, 4]},
                    {"model.num_kv_heads": 1},
                    {"model.position.kind": ["learned", "alibi"]},
                ]
            }
        ],
        arm=_recall_arm,
        seeds=[0, 1],
        baseline="recall",
        evals=["retrieval"],
    )
    return dict(name="demo", title="Ablax demo", studies={"heads": heads, "recall": recall})


def _recall_arm(config: Any) -> str:
    """Returns an arm's name: what differs from two heads, each with its own keys and values, turned by RoPE."""
    model = config.model
    if model.position.kind != "rope":
        return f"recall-{model.position.kind}"
    if model.num_heads != 2:
        return f"recall-heads{model.num_heads}"
    return "recall-kv1" if model.num_kv_heads == 1 else "recall"
