"""RoPE scalings on text: untuned to 8x, then tuned at 4x for 1, 5 and 20% of the updates. See protocol.md."""

from pathlib import Path
from typing import Any

THETAS = {"t10000": 10_000.0, "t1350": 1_350.0}
KIND = "model.position.rope.scaling.kind"
FACTOR = "model.position.rope.scaling.factor"
ORIGINAL = "model.position.rope.scaling.original_length"
THETA = "model.position.rope.theta"
SCALINGS = ("linear", "ntk", "dynamic", "yarn")
LENGTH, BATCH, UPDATES, STRETCH = 256, 8, 600, 4
SHARES = (20, 5, 1)  # percent of the updates that tuning takes
SEEDS = [0, 1, 2, 3, 4]
MODEL: dict[str, Any] = {
    "model.width": 128,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "data.tokenizer": str(Path(__file__).with_name("bpe1024.json")),
    "checkpoint.every_steps": 0,
    "log.tensorboard": False,
    "eval.every_steps": 0,
    "eval.tokens": 32_768,
    "eval.loss_tokens": 32_768,
    "eval.bootstrap": 50,
}


def get_sweep() -> dict:
    """Returns the sweep."""
    text = dict(
        title="RoPE scalings on text, untuned",
        question="Past the training length, what does each scaling leave of the loss without any training?",
        base="configs/lm.py",
        fixed={
            **MODEL,
            "data.length": LENGTH,
            "data.batch_size": BATCH,
            "budget.amount": UPDATES,
            "eval.multiples": (1, 2, 4, 8),
            "eval.scalings": SCALINGS,
        },
        axes=[{THETA: list(THETAS.values())}],
        arm=lambda config: _theta(config),
        baseline="t10000",
        seeds=SEEDS,
        evals=["loss"],
    )
    studies = {"text": text} | {f"tuned{percent}": _tuned(percent) for percent in SHARES}
    return dict(name="rope_scaling", title="RoPE scalings on text", studies=studies)


def _tuned(percent: int) -> dict:
    """Returns the study that continues t10000 at four times the length for that share of its updates."""
    fixed = [kind for kind in SCALINGS if kind != "dynamic"]
    return dict(
        title=f"RoPE scalings on text, tuned for {percent}% of the updates",
        question="What does a little training at four times the length give back, with each scaling and without any?",
        base="configs/lm.py",
        fixed={
            **MODEL,
            THETA: THETAS["t10000"],
            "init_from": "arm:t10000",
            ORIGINAL: LENGTH,
            "data.length": STRETCH * LENGTH,
            "data.batch_size": BATCH // STRETCH,
            "budget.amount": UPDATES * percent // 100,
            "optimizer.learning_rate": 1e-3,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 2,
            "eval.multiples": (0.25, 1, 2),
            "eval.control": False,
        },
        # Dynamic NTK of factor 1 at s times the original length is NTK of factor s.
        axes=[{"chain": [{KIND: "none"}, {KIND: fixed, FACTOR: float(STRETCH)}, {KIND: "dynamic", FACTOR: 1.0}]}],
        arm=lambda config: f"tuned{percent}-{config.model.position.rope.scaling.kind}",
        baseline=f"tuned{percent}-none",
        seeds=SEEDS if percent == max(SHARES) else SEEDS[:3],
        evals=["loss"],
    )


def _theta(config: Any) -> str:
    return next(name for name, theta in THETAS.items() if theta == config.model.position.rope.theta)
