"""RoPE scalings on key-value recall, asked once from far: untuned to 16x, then tuned at 4x. See protocol.md."""

from typing import Any

from studies.rope_scaling.sweep import FACTOR, KIND, ORIGINAL, SCALINGS, SEEDS, STRETCH

LENGTH = 63
MODEL: dict[str, Any] = {
    "checkpoint.every_steps": 0,
    "log.tensorboard": False,
    "eval.every_steps": 0,
    "eval.retrieval.generate": False,
}


def get_sweep() -> dict:
    """Returns the sweep: a model asked under every scaling, and that model continued with PI and without any."""
    recall = dict(
        title="RoPE scalings on recall, untuned",
        question="Which scaling lets a model recall from farther back than it was trained to look?",
        base="configs/retrieval.py",
        fixed={
            **MODEL,
            "data.curriculum": (
                {"steps": 200, "length": 15, "pairs": 4, "batch_size": 128},
                {"steps": 50, "length": 31, "pairs": 8, "batch_size": 64},
            ),
            "data.batch_size": 32,
            "budget.amount": 300,
            "eval.multiples": (1, 2, 4, 8, 16),
            "eval.scalings": SCALINGS,
        },
        arm="recall",
        baseline="recall",
        seeds=SEEDS,
        evals=["retrieval"],
    )
    tuned = dict(
        title="RoPE scalings on recall, tuned",
        question="How far does recall reach after 60 updates at four times the length, with PI and without?",
        base="configs/retrieval.py",
        fixed={
            **MODEL,
            "init_from": "arm:recall",
            ORIGINAL: LENGTH,
            "data.length": STRETCH * LENGTH,
            # Bare pairs of so small a vocabulary end before 252 tokens; with gaps questions stand anywhere in the row.
            "data.weights.mqar": 0.25,
            "data.weights.mqar_gaps": 0.75,
            "data.mqar.power": 1.0,
            "data.mqar.filler": "random",
            "data.batch_size": 8,
            "data.curriculum": (),
            "budget.amount": 60,
            "optimizer.learning_rate": 1e-3,
            "optimizer.warmup_steps": 5,
            "eval.multiples": (0.25, 1, 2, 4),
            "eval.scalings": (),
            "eval.retrieval.task": "mqar",
        },
        axes=[{"chain": [{KIND: "none"}, {KIND: "linear", FACTOR: float(STRETCH)}]}],
        arm="recall-tuned-{model.position.rope.scaling.kind}",
        baseline="recall-tuned-none",
        seeds=SEEDS,
        evals=["retrieval"],
    )
    return dict(name="rope_recall", title="RoPE scalings on recall", studies={"recall": recall, "recall_tuned": tuned})
