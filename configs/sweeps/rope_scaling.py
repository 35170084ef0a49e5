"""RoPE scalings three ways: put onto a trained model at evaluation only, trained with from the start, and tuned in.

On text and on key-value recall one arm (`text`, `recall`) is trained plainly and evaluated from 1x to 8x its length
under every scaling, with the factor that just reaches the length. The arms `start-*` are trained on text with a scaling
of factor 4 all along, at the same length. The arms `tuned-*` and `recall-tuned-*` continue the plain runs at 4x their
length with a scaling of factor 4, for a small budget; `-none` gets the same budget without any scaling (direct
fine-tuning).

Dynamic NTK takes factor 1 throughout, where the others take the multiple: dynamic(s) at s times the original length is
NTK(s^2 - s + 1), dynamic(1) is NTK(s), so that all are equally strong. It changes nothing up to the original length:
`start-dynamic` trains as `text` does and differs beyond it.

docs/studies/rope_scaling.md has the published comparison.
"""

SCALINGS = ["linear", "ntk", "ntk_by_parts", "dynamic", "yarn", "llama3"]
KIND = "model.position.rope.scaling.kind"
FACTOR = "model.position.rope.scaling.factor"
ORIGINAL = "model.position.rope.scaling.original_length"
STRETCH = 4  # the factor of what is trained with a scaling, and how much longer the continued runs' rows are
SMALL = {  # two layers of width 64 on text, so that 66 runs should take well under an hour on two cores
    "model.width": 64,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "data.batch_size": 16,
    "checkpoint.every_steps": 0,
    "eval.tokens": 32768,
    "eval.bootstrap": 200,
}


def get_sweep() -> dict:
    """Returns the sweep: 14 arms on text and 8 on recall, 3 seeds each."""
    fixed = [kind for kind in SCALINGS if kind != "dynamic"]
    scaled = [{KIND: fixed, FACTOR: float(STRETCH)}, {KIND: "dynamic", FACTOR: 1.0}]
    text = dict(
        title="RoPE scalings on text",
        question="Past the training length, which scaling holds without training, and does training with it help?",
        base="configs/lm.py",
        fixed={**SMALL, "budget.amount": 500, "eval.every_steps": 250, "eval.multiples": (1, 2, 4, 8)},
        axes=[{"chain": [{KIND: "none", "eval.scalings": tuple(SCALINGS)}, *scaled]}],
        arm=lambda config: "text" if _kind(config) == "none" else f"start-{_kind(config)}",
        baseline="text",
        evals=["loss"],
    )
    text_tuned = dict(
        title="RoPE scalings on text, tuned",
        question="What do 100 steps at four times the length give back, with each scaling and without any?",
        base="configs/lm.py",
        fixed={**SMALL, **_longer("text", 128), "data.batch_size": 4, "eval.every_steps": 20},
        axes=[{"chain": [{KIND: "none"}, *scaled]}],
        arm=lambda config: f"tuned-{_kind(config)}",
        baseline="tuned-none",
        evals=["loss"],
    )
    recall = dict(
        title="RoPE scalings on key-value recall",
        question="What is left of exact recall past the training length under each scaling, without training?",
        base="configs/retrieval.py",
        fixed={"eval.scalings": tuple(SCALINGS), "eval.multiples": (1, 2, 4, 8, 16)},
        arm="recall",
        baseline="recall",
        evals=["loss", "retrieval"],
    )
    recall_tuned = dict(
        title="RoPE scalings on key-value recall, tuned",
        question="How far does recall reach after 100 steps at four times the length, with each scaling and without?",
        base="configs/retrieval.py",
        fixed={
            **_longer("recall", 63),
            # Bare pairs of so small a vocabulary end before 252 tokens; with gaps questions stand anywhere in the row.
            "data.weights.mqar": 0.25,
            "data.weights.mqar_gaps": 0.75,
            "data.mqar.power": 1.0,
            "data.mqar.filler": "random",
            "data.batch_size": 16,
            "data.curriculum": (),
            "eval.every_steps": 50,
            "eval.scalings": (),
            "eval.retrieval.task": "mqar",
            "eval.retrieval.generate": False,
        },
        axes=[{"chain": [{KIND: "none"}, *scaled]}],
        arm=lambda config: f"recall-tuned-{_kind(config)}",
        baseline="recall-tuned-none",
        evals=["retrieval"],
    )
    studies = {"text": text, "text_tuned": text_tuned, "recall": recall, "recall_tuned": recall_tuned}
    return dict(name="rope_scaling", title="RoPE scalings", seeds=[0, 1, 2], studies=studies)


def _longer(arm: str, length: int) -> dict:
    """Returns what continues `arm`, trained at `length`, for 100 steps at four times the length."""
    return {
        "init_from": f"arm:{arm}",
        ORIGINAL: length,
        "data.length": STRETCH * length,
        "budget.amount": 100,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup_steps": 10,
        "checkpoint.every_steps": 0,
        "eval.multiples": (0.25, 0.5, 1, 2),
    }


def _kind(config: object) -> str:
    return config.model.position.rope.scaling.kind  # type: ignore[attr-defined]
