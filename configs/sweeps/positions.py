"""Every positional scheme on text and on recall, within the training length and beyond it.

Lengths beyond the training length are evaluated twice: in windows laid end to end ("long window"), where every token
has as much before it as there happens to be, and in windows that overlap (sliding), where each token is predicted from
nearly a whole window. A loss that falls with the length in the first and not in the second does not come from use of
the length (the ALiBi trap; docs/log.md has the figures of five).

The table of learned positions has rows for 16 times the training length on text, of which training never touches those
beyond it. Without any scheme (none) the causal mask alone distinguishes positions. The arms that read the scores
themselves (cope) run on the plain core, whose cost is not the others': compare their quality, not their throughput.
"""

KINDS = (
    "none learned sinusoidal rope p_rope xpos alibi t5 kerple_log kerple_power fire cope"  # models/positions has each
).split()
KIND, ROWS = "model.position.kind", "model.position.max_length"
PARTIAL = {KIND: "p_rope", "model.position.rope.fraction": 0.75}  # at 1, the default, it is RoPE
PLAIN = [kind for kind in KINDS if kind not in ("learned", "p_rope")]


def get_sweep() -> dict:
    """Returns the sweep: two studies of 12 arms, 3 seeds each."""
    text = dict(
        title="Positions on text",
        question="Which positional scheme has the lowest loss at the training length, and which holds beyond it?",
        base="configs/lm.py",
        fixed={
            "model.width": 64,
            "model.num_layers": 2,
            "data.length": 64,
            "data.batch_size": 16,
            "budget.amount": 250,
            "optimizer.warmup_steps": 50,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 0,
            "eval.multiples": (1, 2, 4, 8, 16),
            "eval.sliding": 0.25,
            "eval.tokens": 32768,
            "eval.bootstrap": 200,
        },
        axes=[{"chain": [{KIND: PLAIN}, PARTIAL, {KIND: "learned", ROWS: 16 * 64}]}],
        arm="text-{model.position.kind}",
        baseline="text-rope",
        evals=["loss", "throughput", "memory"],
    )
    recall = dict(
        title="Positions on key-value recall",
        question="Which positional scheme lets the same small model learn recall, and keep it beyond its length?",
        base="configs/retrieval.py",
        fixed={"checkpoint.every_steps": 0, "eval.multiples": (1, 2, 4, 8), "eval.scalings": ()},
        axes=[{"chain": [{KIND: [*PLAIN, "learned"]}, PARTIAL]}],
        arm="recall-{model.position.kind}",
        baseline="recall-rope",
        evals=["retrieval"],
    )
    return dict(name="positions", title="Positional schemes", seeds=[0, 1, 2], studies={"text": text, "recall": recall})
