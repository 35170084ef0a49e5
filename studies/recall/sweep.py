"""Zoology's figure 2 for attention: recall by width, pairs and length, rates tuned. See protocol.md."""

from typing import Any

SETTINGS = {64: 4, 128: 8, 256: 16}  # tokens of a row: pairs
WIDTH, LENGTH, PAIRS = "model.width", "data.length", "data.mqar.pairs"


def _name(config: Any) -> str:
    return f"d{config.model.width}-t{config.data.length}-p{config.data.mqar.pairs}"


def get_sweep() -> dict:
    """Returns the sweep: 4 widths in each of three settings, a rate of its own for each, 3 seeds."""
    return dict(name="recall", title="Recall by width, pairs and length", studies={
        f"t{length}": dict(
            title=f"Recall of {pairs} pairs in {length} tokens",
            question="Which width does attention need?",
            base="configs/retrieval.py",
            fixed={
                "model.num_heads": 1,
                "model.position.kind": "learned",
                "data.mqar.vocab_size": 8192,
                "data.weights.mqar": 0.0,
                "data.weights.mqar_gaps": 1.0,
                LENGTH: length,
                PAIRS: pairs,
                "data.batch_size": 512 * 64 // length,
                "data.curriculum": (),
                "budget.amount": 8000,
                "checkpoint.every_steps": 2000,
                "log.tensorboard": False,
                "eval.every_steps": 500,
                "eval.multiples": (1,),
                "eval.scalings": (),
                "eval.retrieval.examples": 512,
                "eval.retrieval.depths": 1,
                "eval.retrieval.generate": False,
            },
            axes=[{WIDTH: [32, 64, 128, 256]}],
            arm=_name,
            baseline=f"d64-t{length}-p{pairs}",
            select=dict(field="optimizer.learning_rate", values=[3e-4, 1e-3, 3e-3, 1e-2], seeds=[100]),
            solved=dict(accuracy=0.99),
            seeds=[0, 1, 2],
            evals=["loss", "retrieval"],
        )
        for length, pairs in SETTINGS.items()
    })  # fmt: skip
