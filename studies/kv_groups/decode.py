"""Decode speed and bytes of the arms of sweep.py: 64 rows, a prompt of 256 tokens, two updates of training.

Speed and bytes depend on shapes alone, so that the models need not be trained.
"""

from typing import Any

from studies.kv_groups.rates import ARMS, FIXED, MLP, name

FEW: dict[str, Any] = {
    "budget.amount": 2,
    "optimizer.warmup_steps": 1,
    "eval.throughput.decode_batch_size": 64,
    "eval.throughput.new_tokens": 16,
    "eval.throughput.repeats": 7,
}


def get_sweep() -> dict:
    """Returns the sweep: 6 arms, 1 seed."""
    return dict(
        name="kv_groups_decode",
        title="Decode speed by key/value groups",
        base="configs/lm.py",
        fixed={**FIXED, **FEW},
        axes=[{"chain": ARMS}],
        arm=lambda config: f"decode-{name(config)}",
        match=dict(equal="parameters", to="decode-mha", by=MLP),
        seeds=[0],
        baseline="decode-mha",
        evals=["throughput"],
    )
