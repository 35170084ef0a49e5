"""What heads, KV groups, positions and RoPE scalings do to loss and retrieval, within ten minutes on two cores.

The first study trains byte-level models on the Python standard library's sources: four heads, and at the same width 16
thin heads, one key/value head for all four, and no positions. The baseline is also read at four and eight times the
length that it was trained at, under RoPE scalings that are applied at evaluation only. The second study trains a
model that retrieves (configs/retrieval.py) and asks it in the same way for what lies far beyond its training length,
beside the local baseline, which cannot see so far.

What it claims is of 250 updates at one learning rate, and its questions say so; studies/heads has rates of their own
and two budgets. Sizes and seeds were chosen so that the claims hold for other seeds too: docs/log.md has the sets.
"""

from typing import Any

SCALINGS = ("linear", "ntk", "yarn")


def get_sweep() -> dict:
    """Returns the sweep: see `sweeps/spec/expand.py` for the form."""
    text = dict(
        title="Attention at a fixed width, after 250 updates",
        question="At width 64, after 250 updates at one learning rate: what do 16 thin heads, one key/value head, and "
        "no positions change in the loss on text, and which RoPE scaling reads beyond the training length?",
        base="configs/lm.py",
        fixed={
            "model.width": 64,
            "model.num_layers": 2,
            "data.length": 128,
            "data.batch_size": 16,
            "budget.amount": 250,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 125,
            "eval.multiples": (1, 4, 8),
            "eval.tokens": 16384,
            "eval.loss_tokens": 131072,
            "eval.throughput.repeats": 3,
        },
        axes=[
            {
                "chain": [
                    {"model.num_heads": 4, "eval.scalings": SCALINGS},
                    {"model.num_heads": 16},
                    {"model.num_kv_heads": 1},
                    {"model.position.kind": "none"},
                ]
            }
        ],
        derived={"model.head_dim": lambda config: config.model.width // config.model.num_heads},
        arm=_text_arm,
        seeds=[0, 1, 2, 3, 4],
        baseline="heads4",
        evals=["loss", "throughput", "memory"],
    )
    recall = dict(
        title="Recall past the training length",
        question="A model that recalls pairs within 63 tokens: which RoPE scaling lets it recall from farther back?",
        base="configs/retrieval.py",
        fixed={
            "checkpoint.every_steps": 0,
            "eval.every_steps": 0,
            "eval.multiples": (1, 4, 8),
            "eval.scalings": SCALINGS,
            "eval.retrieval.generate": False,
        },
        arm="recall",
        seeds=[0, 1, 2],
        evals=["retrieval"],
    )
    return dict(name="demo", title="Ablax demo", studies={"text": text, "recall": recall})


def _text_arm(config: Any) -> str:
    """Returns an arm's name: what differs from four heads, each with its own keys and values, rotated by RoPE."""
    model = config.model
    if model.position.kind != "rope":
        return "no-positions"
    return "heads4-kv1" if model.num_kv_heads == 1 else f"heads{model.num_heads}"
