"""RoPE scalings three ways: put onto a trained model at evaluation only, trained with from the start, and tuned in.

Each task has one arm that is trained plainly and evaluated at 1x, 2x, 4x and 8x its length under every scaling, with
the factor that just reaches the length. On text, the arms `trained-*` are trained with a scaling of factor 4 all along,
at the same length. The arms `tuned-*` continue the plain runs at 4x their length with a scaling of factor 4, for a
small budget; `tuned-none` gets the same budget without scaling (direct fine-tuning). Dynamic NTK changes nothing up to
the original length, so that its arm trains as the plain one does.
"""

SCALINGS = ["linear", "ntk", "ntk_by_parts", "dynamic", "yarn", "llama3"]
KIND = "model.position.rope.scaling.kind"
FACTOR = "model.position.rope.scaling.factor"
ORIGINAL = "model.position.rope.scaling.original_length"


def get_sweep() -> dict:
    """Returns the sweep: 14 arms on text and 8 on recall, 3 seeds each."""
    text = dict(
        title="RoPE scalings on text",
        question="Past the training length, which scaling holds without training, and does training with it help?",
        base="configs/lm.py",
        fixed={"eval.multiples": (1, 2, 4, 8)},
        axes=[{"chain": [{KIND: "none", "eval.scalings": tuple(SCALINGS)}, {KIND: SCALINGS, FACTOR: 4.0}]}],
        arm=lambda config: "rope" if _kind(config) == "none" else f"trained-{_kind(config)}",
        baseline="rope",
        evals=["loss"],
    )
    text_tuned = _tuned("text", "rope", length=128, steps=200, base="configs/lm.py", evals=["loss"])
    recall = dict(
        title="RoPE scalings on key-value recall",
        question="What is left of exact recall past the training length under each scaling, without training?",
        base="configs/retrieval.py",
        fixed={"eval.scalings": tuple(SCALINGS)},
        arm="recall",
        baseline="recall",
        evals=["loss", "retrieval"],
    )
    recall_tuned = _tuned(
        "recall", "recall", length=63, steps=100, base="configs/retrieval.py", evals=["loss", "retrieval"]
    )
    recall_tuned["fixed"] |= {"data.curriculum": (), "eval.scalings": ()}
    studies = {"text": text, "text_tuned": text_tuned, "recall": recall, "recall_tuned": recall_tuned}
    return dict(name="rope_scaling", title="RoPE scalings", seeds=[0, 1, 2], studies=studies)


def _tuned(task: str, arm: str, *, length: int, steps: int, base: str, evals: list[str]) -> dict:
    """Returns the study that continues `arm`, trained at `length`, at four times the length."""
    prefix = "tuned" if task == "text" else f"{task}-tuned"
    return dict(
        title=f"RoPE scalings on {task}, tuned",
        question=f"What do {steps} steps at four times the length give back, with each scaling and without any?",
        base=base,
        fixed={
            "init_from": f"arm:{arm}",
            ORIGINAL: length,
            "data.length": 4 * length,
            "data.batch_size": 8 if task == "text" else 16,
            "budget.amount": steps,
            "optimizer.learning_rate": 1e-3,
            "optimizer.warmup_steps": steps // 10,
            "checkpoint.every_steps": 0,
            "eval.every_steps": steps // 4,
            "eval.multiples": (0.25, 0.5, 1, 2),
        },
        axes=[{"chain": [{KIND: "none"}, {KIND: SCALINGS, FACTOR: 4.0}]}],
        arm=lambda config: f"{prefix}-{_kind(config)}",
        baseline=f"{prefix}-none",
        evals=evals,
    )


def _kind(config: object) -> str:
    return config.model.position.rope.scaling.kind  # type: ignore[attr-defined]
