"""Every positional scheme on text and on recall, within the training length and beyond it.

A table of learned positions has no rows beyond its length, so that its arm has no results there; the report shows the
gap. Without any scheme (none) the causal mask alone tells positions apart. The
arms that read the scores themselves (cope) run on the plain core, whose cost is not the others': compare their quality,
not their throughput.
"""

KINDS = (
    "none learned sinusoidal rope p_rope xpos alibi t5 kerple_log kerple_power fire cope"  # models/positions has each
).split()


def get_sweep() -> dict:
    """Returns the sweep: two studies of 12 arms, 3 seeds each."""
    kinds = [{"model.position.kind": KINDS}]
    text = dict(
        title="Positions on text",
        question="Which positional scheme has the lowest loss at the training length, and which holds beyond it?",
        base="configs/lm.py",
        fixed={"eval.multiples": (1, 2, 4)},
        axes=kinds,
        arm="text-{model.position.kind}",
        baseline="text-rope",
        evals=["loss", "throughput", "memory"],
    )
    recall = dict(
        title="Positions on key-value recall",
        question="Which positional scheme lets the same small model learn recall, and keep it beyond its length?",
        base="configs/retrieval.py",
        fixed={"eval.multiples": (1, 2, 4), "eval.scalings": ()},
        axes=kinds,
        arm="recall-{model.position.kind}",
        baseline="recall-rope",
        evals=["retrieval"],
    )
    return dict(name="positions", title="Positional schemes", seeds=[0, 1, 2], studies={"text": text, "recall": recall})
