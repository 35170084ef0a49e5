"""Every switch of attention against one baseline, matched in parameters: which of them lowers the loss at this size?

Published results of these switches contradict one another with size, so a verdict here is about this width, this
corpus and this budget. Each arm has the baseline's parameters within a percent, by the MLP's width, which pays for a
gate or a table of values. Value embeddings have a row for each id of the vocabulary: where width is small they cost
much.

All arms run on the reference kernel, so that they differ in the switch and not in the kernel. A new switch is one
line of ARMS.
"""

from ml_collections import ConfigDict

from configs import fields

ATTENTION = "model.attention."
# arm -> what it changes of model.attention
ARMS: dict[str, dict] = {
    "baseline": {},
    "gate-head": {"gate.kind": "head"},
    "gate-element": {"gate.kind": "element"},
    "value-residual": {"value_residual": "fixed"},
    "value-residual-learned": {"value_residual": "learned"},
    "value-embeddings": {"value_embedding": "shared"},
    "differential": {"kind": "differential"},
    "sigmoid": {"weights.kind": "sigmoid"},
    "talking-heads": {"talking_heads": True},
    "exclusive": {"exclusive": True},
    "selective": {"weights.kind": "selective"},
    "top-k": {"weights.kind": "top_k", "weights.top_k": 16},
}


def get_sweep() -> dict:
    """Returns the sweep: an arm for each switch, 3 seeds."""
    return dict(
        name="switches",
        title="Switches of attention",
        question="Which switch of attention changes the validation loss, at equal parameters?",
        base="configs/lm.py",
        fixed={
            "model.width": 64,
            "model.num_layers": 3,
            "model.attention.kernel": "reference",
            "data.length": 64,
            "data.batch_size": 16,
            "budget.amount": 600,
            "optimizer.warmup_steps": 50,
            "checkpoint.every_steps": 0,
            "eval.every_steps": 0,
            "eval.multiples": (1,),
            "eval.tokens": 32768,
            "eval.bootstrap": 200,
        },
        axes=[{"chain": [_axis(changes) for changes in ARMS.values()]}],
        arm=_name,
        seeds=[0, 1, 2],
        baseline="baseline",
        match=dict(equal="parameters", to="baseline", by="model.mlp_width"),
        evals=["loss"],
    )


def _axis(changes: dict) -> dict:
    return {ATTENTION + field: value for field, value in (changes or {"kind": "gqa"}).items()}


def _name(config: ConfigDict) -> str:
    values = fields.flatten(config)
    return next(
        name
        for name, changes in reversed(ARMS.items())
        if all(values[ATTENTION + field] == value for field, value in changes.items())
    )
