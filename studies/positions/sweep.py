"""All positional schemes on text, trained at 64 tokens and tested to 16x; NoPE on small tasks. See protocol.md."""

from typing import Any

KINDS = (
    "none learned sinusoidal rope p_rope xpos alibi t5 kerple_log kerple_power fire cope"  # models/positions has each
).split()
KIND, ROWS, FRACTION = "model.position.kind", "model.position.max_length", "model.position.rope.fraction"
LENGTH = 64
SEEDS = [0, 1, 2]
SMALL: dict[str, Any] = {
    "model.width": 64,
    "model.num_layers": 2,
    "checkpoint.every_steps": 0,
    "log.tensorboard": False,
    "eval.every_steps": 0,
    "eval.bootstrap": 50,
}
TASKS: dict[str, dict[str, Any]] = {
    "copy": {
        "data.weights.selective_copy": 1.0,
        "data.mqar.pairs": 4,
        "data.retrieval.needles": 4,
        "data.curriculum": (),
        "budget.amount": 600,
        "eval.multiples": (1, 1.5, 2),
    },
    "recall": {  # 300 updates of shorter rows first: it is not learned without them
        "data.weights.mqar": 1.0,
        "data.mqar.vocab_size": 32,
        "data.mqar.pairs": 5,
        "data.curriculum": ({"steps": 300, "length": 12, "batch_size": 256, "pairs": 3},),
        "budget.amount": 900,
        "eval.multiples": (1, 2, 4),
    },
}
SCHEMES = {
    "copy": [{KIND: ["none", "rope", "alibi", "t5"]}, {KIND: "learned", ROWS: 40}],
    "recall": [{KIND: ["none", "rope", "alibi"]}],
}


def get_sweep() -> dict:
    """Returns the sweep: 12 arms on text, 5 on copying, 3 on recall."""
    text = dict(
        title="Positions on text",
        question="Which positional scheme has the lowest loss at the training length, and which holds beyond it?",
        base="configs/lm.py",
        fixed={
            **SMALL,
            "data.length": LENGTH,
            "data.batch_size": 16,
            "budget.amount": 400,
            "optimizer.warmup_steps": 50,
            "eval.multiples": (1, 2, 4, 16),
            "eval.sliding": 0.25,
            "eval.tokens": 16_384,
            "eval.loss_tokens": 32_768,
        },
        axes=[
            {
                "chain": [
                    {KIND: [kind for kind in KINDS if kind not in ("learned", "p_rope")]},
                    {KIND: "learned", ROWS: 16 * LENGTH},
                    {KIND: "p_rope", FRACTION: 0.75},  # at 1, the default, it is RoPE
                ]
            }
        ],
        arm="text-{model.position.kind}",
        baseline="text-rope",
        seeds=SEEDS,
        evals=["loss"],
    )
    studies = {"text": text} | {name: _task(name, fixed) for name, fixed in TASKS.items()}
    return dict(name="positions", title="Positional schemes", studies=studies)


def _task(name: str, fixed: dict[str, Any]) -> dict:
    return dict(
        title=f"Positions on {name}",
        question="Trained to 20 tokens and tested past them, which scheme keeps a small task?",
        base="configs/retrieval.py",
        fixed={
            **SMALL,
            "data.weights.mqar": 0.0,
            **fixed,
            "data.length": 20,
            "data.batch_size": 128,
            "eval.scalings": (),
            "eval.retrieval.generate": False,
        },
        axes=[{"chain": SCHEMES[name]}],
        arm=f"{name}-{{model.position.kind}}",
        baseline=f"{name}-rope",
        seeds=SEEDS,
        evals=["retrieval"],
    )
