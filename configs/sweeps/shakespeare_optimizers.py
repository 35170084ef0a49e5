"""Muon against AdamW on tiny Shakespeare, each at a selected learning rate, 5 seeds.

nanoGPT's CPU setting (configs/shakespeare_char.py), with `--config.data.path=input.txt`. One number is tuned in both
arms: `optimizer.learning_rate` on a selection seed. Under Muon it is the rate of what AdamW updates, and the matrices'
rate is 10 times that: an orthogonalised update has another size. Equal weight decay is multiplied by unequal rates.
"""

from ml_collections import ConfigDict

RATES = [1e-3, 2e-3, 4e-3, 8e-3]
MATRICES = 10  # the matrices' learning rate under Muon, times the other


def get_sweep() -> dict:
    """Returns the sweep: 2 arms, 4 learning rates on 1 seed each, then 5 seeds."""
    return dict(
        name="shakespeare_optimizers",
        title="Muon and AdamW on tiny Shakespeare",
        question="Does Muon reach a lower loss than AdamW in the same steps, if both rates are selected?",
        base="configs/shakespeare_char.py",
        fixed={"eval.tokens": 16384, "checkpoint.every_steps": 0},
        axes=[{"optimizer.kind": ["adamw", "muon"]}],
        derived={"optimizer.muon.learning_rate": _matrices},
        arm="{optimizer.kind}",
        seeds=[0, 1, 2, 3, 4],
        baseline="adamw",
        select=dict(field="optimizer.learning_rate", values=RATES, seeds=[100]),
        evals=["loss", "memory"],
    )


def _matrices(config: ConfigDict) -> float:
    rates = config.optimizer
    return MATRICES * rates.learning_rate if rates.kind == "muon" else rates.muon.learning_rate
