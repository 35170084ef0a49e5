"""RoPE scalings two ways: put onto a trained model at evaluation only, and trained with from the first step.

The arm `rope` is trained plainly, and evaluated at 1x, 2x, 4x and 8x its length under each scaling, with the factor
that just reaches the length. The other arms are trained with a scaling of factor 4 all along, at the same length, and
evaluated as they are. Dynamic NTK changes nothing up to the original length, so that its arm trains as `rope` does.
"""

SCALINGS = ["linear", "ntk", "dynamic", "yarn", "llama3"]
KIND = "model.position.rope.scaling.kind"
FACTOR = "model.position.rope.scaling.factor"


def get_sweep() -> dict:
    """Returns the sweep: 6 arms on text and 1 on recall, 3 seeds each."""
    text = dict(
        title="RoPE scalings on text",
        question="Past the training length, which scaling holds without training, and does training with it help?",
        base="configs/lm.py",
        fixed={"eval.multiples": (1, 2, 4, 8)},
        axes=[
            {
                "chain": [
                    {KIND: "none", "eval.scalings": tuple(SCALINGS)},
                    {KIND: SCALINGS, FACTOR: 4.0},
                ]
            }
        ],
        arm=lambda config: _name(config.model.position.rope.scaling.kind),
        baseline="rope",
        evals=["loss"],
    )
    recall = dict(
        title="RoPE scalings on key-value recall",
        question="What is left of exact recall past the training length under each scaling, without training?",
        base="configs/retrieval.py",
        fixed={"eval.scalings": tuple(SCALINGS)},
        arm="recall",
        baseline="recall",
        evals=["retrieval"],
    )
    studies = {"text": text, "recall": recall}
    return dict(name="rope_scaling", title="RoPE scalings", seeds=[0, 1, 2], studies=studies)


def _name(kind: str) -> str:
    return "rope" if kind == "none" else f"trained-{kind}"
