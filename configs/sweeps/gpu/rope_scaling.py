"""RoPE scalings at 360M parameters, on one GPU: at evaluation only, trained with from the start, and tuned in.

`text` is trained plainly at 2,048 tokens and evaluated to eight times that under every scaling. The arms `start-*` are
trained with a scaling of factor 4 all along, at the same length. The arms `tuned-*` continue `text` at 8,192 tokens
with a scaling of factor 4, for 500 steps of as many tokens; `tuned-none` gets the same without any. Dynamic NTK takes
factor 1, which at evaluation is as strong as the others' factor (configs/sweeps/rope_scaling.py says why). The text and
GPT-2's tokenizer come from the command line, as for the base.
"""

SCALINGS = ["linear", "ntk", "ntk_by_parts", "dynamic", "yarn", "llama3"]
KIND = "model.position.rope.scaling.kind"
FACTOR = "model.position.rope.scaling.factor"
ORIGINAL = "model.position.rope.scaling.original_length"
LENGTH, STRETCH = 2048, 4


def get_sweep() -> dict:
    """Returns the sweep: 14 arms, 3 seeds."""
    scaled = [{KIND: [kind for kind in SCALINGS if kind != "dynamic"], FACTOR: float(STRETCH)},
              {KIND: "dynamic", FACTOR: 1.0}]  # fmt: skip
    text = dict(
        title="RoPE scalings",
        question="Past the training length, which scaling holds without training, and does training with it help?",
        base="configs/llama_350m.py",
        fixed={"eval.multiples": (1, 2, 4, 8)},
        axes=[{"chain": [{KIND: "none", "eval.scalings": tuple(SCALINGS)}, *scaled]}],
        arm=lambda config: "text" if _kind(config) == "none" else f"start-{_kind(config)}",
        baseline="text",
        evals=["loss"],
    )
    tuned = dict(
        title="RoPE scalings, tuned",
        question="What do 500 steps at four times the length give back, with each scaling and without any?",
        base="configs/llama_350m.py",
        fixed={
            "init_from": "arm:text",
            ORIGINAL: LENGTH,
            "data.length": STRETCH * LENGTH,
            "data.batch_size": 64,
            "data.micro_batches": 32,
            "budget.kind": "steps",
            "budget.amount": 500,
            "optimizer.learning_rate": 1e-4,
            "optimizer.warmup_steps": 20,
            "eval.every_steps": 100,
            "eval.multiples": (0.25, 0.5, 1, 2),
        },
        axes=[{"chain": [{KIND: "none"}, *scaled]}],
        arm=lambda config: f"tuned-{_kind(config)}",
        baseline="tuned-none",
        evals=["loss"],
    )
    studies = {"text": text, "tuned": tuned}
    return dict(name="gpu_rope_scaling", title="RoPE scalings at 360M parameters", seeds=[0, 1, 2], studies=studies)


def _kind(config: object) -> str:
    return config.model.position.rope.scaling.kind  # type: ignore[attr-defined]
