"""All positional schemes on text, trained at 64 tokens and tested to 16x; NoPE on small tasks. See protocol.md."""

from typing import Any

KINDS = (
    "none learned sinusoidal rope p_rope xpos alibi t5 kerple_log kerple_power fire cope"  # models/positions has each
).split()
KIND, ROWS = "model.position.kind", "model.position.max_length"
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
TASKS = {"copy": "selective_copy", "induction": "induction_repeat", "recall": "mqar_gaps"}


def get_sweep() -> dict:
    """Returns the sweep: 12 arms on text, 5 on each of three tasks."""
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
            "eval.control": False,
        },
        axes=[{"chain": [{KIND: [kind for kind in KINDS if kind != "learned"]}, {KIND: "learned", ROWS: 16 * LENGTH}]}],
        arm="text-{model.position.kind}",
        baseline="text-rope",
        seeds=SEEDS,
        evals=["loss"],
    )
    studies = {"text": text} | {name: _task(name, task) for name, task in TASKS.items()}
    return dict(name="positions", title="Positional schemes", studies=studies)


def _task(name: str, task: str) -> dict:
    return dict(
        title=f"Positions on {task}",
        question="Trained to 20 tokens and tested to 40, which scheme keeps a small task?",
        base="configs/retrieval.py",
        fixed={
            **SMALL,
            "data.weights.mqar": 0.0,
            f"data.weights.{task}": 1.0,
            "data.mqar.pairs": 4,
            "data.retrieval.needles": 4,
            "data.length": 20,
            "data.batch_size": 128,
            "data.curriculum": (),
            "budget.amount": 600,
            "eval.multiples": (1, 1.5, 2),
            "eval.scalings": (),
            "eval.retrieval.generate": False,
        },
        axes=[{"chain": [{KIND: ["none", "rope", "alibi", "t5"]}, {KIND: "learned", ROWS: 40}]}],
        arm=f"{name}-{{model.position.kind}}",
        baseline=f"{name}-rope",
        seeds=SEEDS,
        evals=["retrieval"],
    )
