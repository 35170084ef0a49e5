"""MHA, GQA, MQA and MHA of fewer or thinner heads, at equal parameters. See protocol.md."""

from typing import Any

from studies.kv_groups.rates import ARMS, FIXED, MLP, name

RATES = {"mha": 2e-3, "gqa2": 2e-3, "mqa": 2e-3, "h1k16": 2e-3, "h2k8": 4e-3, "h4k4": 2e-3}  # from rates.py


def _rate(config: Any) -> float:
    return RATES[name(config)]


def get_sweep() -> dict:
    """Returns the sweep: 6 arms, 3 seeds."""
    return dict(
        name="kv_groups",
        title="Key/value groups of 8 heads",
        question="At equal parameters, what do fewer key/value heads cost in loss, and fewer or thinner heads?",
        base="configs/lm.py",
        fixed={**FIXED, "eval.split": "test"},
        axes=[{"chain": ARMS}],
        derived={"optimizer.learning_rate": _rate},
        arm=name,
        match=dict(equal="parameters", to="mha", by=MLP),
        seeds=list(range(3)),
        care=0.01,
        baseline="mha",
        evals=["loss"],
    )
