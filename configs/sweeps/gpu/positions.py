"""Every positional scheme at GPT-2's size, on one GPU, within the training length and to four times it.

Everything but the positions is GPT-2's. The table of learned positions has rows for four times the training length, of
which training never touches those beyond it. Lengths beyond the training length are evaluated in windows laid end to
end and in windows that overlap (sliding), as in configs/sweeps/positions.py, which says why. Schemes do not all run the
same kernel (`sweeps.plan` names each arm's), so compare their quality first, and their throughput where kernels agree.
Budget: 20 tokens a parameter. The text and GPT-2's tokenizer come from the command line, as for the base.
"""

KINDS = "none learned sinusoidal rope p_rope xpos alibi t5 kerple_log kerple_power fire cope".split()
KIND, ROWS = "model.position.kind", "model.position.max_length"
PARTIAL = {KIND: "p_rope", "model.position.rope.fraction": 0.75}  # at 1, the default, it is RoPE
PLAIN = [kind for kind in KINDS if kind not in ("learned", "p_rope")]


def get_sweep() -> dict:
    """Returns the sweep: 12 arms, 3 seeds."""
    return dict(
        name="gpu_positions",
        title="Positional schemes at GPT-2's size",
        question="Which positional scheme gives a 124M model the lowest loss at 1,024 tokens, and which holds beyond?",
        base="configs/gpt2_124m.py",
        fixed={
            "budget.kind": "tokens",
            "budget.amount": 2.5e9,
            "optimizer.warmup_steps": 500,
            "eval.multiples": (1, 2, 4),
            "eval.sliding": 0.25,
        },
        axes=[{"chain": [{KIND: PLAIN}, PARTIAL, {KIND: "learned", ROWS: 4 * 1024}]}],
        arm="{model.position.kind}",
        seeds=[0, 1, 2],
        baseline="rope",
        evals=["loss", "throughput", "memory"],
    )
