"""The loss on the validation split: over all of it, by position, length, scaling and text of a mixture."""

from configs.evaluations.evaluation import Column, Evaluation, Measure, Shared

EVALUATION = Evaluation(
    name="loss",
    module="eval.quality.loss",
    kind="quality",
    divided=True,
    measures=(
        Measure("loss", "nats/token", ("loss",), ("loss_interval",), "loss {:.4f}{interval} nats/token"),
        Measure("bits_per_byte", "bits/byte", ("bits_per_byte",), ("bits_per_byte_interval",)),
    ),
    columns=(
        Column("loss", "validation loss with its 95% interval"),
        Column("difference", "difference of loss from the baseline, with its interval", needs="baseline"),
        Column("p", "p of that difference after Holm's correction", needs="baseline"),
        Column("bits", "bits per byte"),
        Column("target", "tokens to the study's target loss", needs="target"),
    ),
    charts=(
        "report.charts.training:by_position",
        "report.charts.lengths:loss_by_length",
        "report.charts.lengths:loss_by_protocol",
        "report.charts.lengths:loss_by_position_beyond",
        "report.charts.lengths:loss_by_scaling",
    ),
    resolved=("source",),
    lists=("eval.scalings",),  # lengths shape every number: rows are cut from those of the longest
    shared=(Shared("validation", "validation tokens", "report.reading.measures:scored"),),
)
