"""What each head attends to, and what the loss is without it."""

from configs.evaluations.evaluation import Column, Evaluation

EVALUATION = Evaluation(
    name="heads",
    module="eval.heads.per_head",
    kind="inspection",
    default=False,  # it takes each head away in turn
    columns=(
        Column(
            "entropy",
            "entropy of attention, mean over heads",
            "entropy",
            "of attention, of the maximum",
            "heads.entropy_share",
            number="report.reading.heads:entropy",
            mean=True,
            show="{:.1%}",
            raw="heads_entropy",
        ),
        Column(
            "apart",
            "Jensen-Shannon divergence between heads",
            "heads apart",
            "JS divergence, nats",
            "layers.divergence.mean",
            number="report.reading.heads:divergence",
            mean=True,
            show="{:.3f}",
            raw="heads_apart",
        ),
        Column(
            "dead",
            "dead heads",
            "dead heads",
            "silent or uniform",
            "heads.dead",
            number="report.reading.heads:dead",
            mean=True,
            raw="heads_dead",
        ),
    ),
    charts=("report.charts.heads:entropy_map",),
    resolved=("source",),
)
