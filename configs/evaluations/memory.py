"""Bytes of a training step, as compiled and by formula."""

from configs.evaluations.evaluation import Column, Evaluation, Measure

EVALUATION = Evaluation(
    name="memory",
    module="eval.cost.memory",
    kind="cost",
    measures=(
        Measure(
            "train_step_peak",
            "bytes",
            ("compiled", "train_step", "peak"),
            line="train step {:,.1f} MiB",
            scale=2**-20,
        ),
        Measure("parameters_memory", "bytes", ("formula", "parameters")),
        Measure("optimizer_memory", "bytes", ("formula", "optimizer")),
    ),
    columns=(
        Column(
            "memory",
            "peak memory of a training step",
            "memory",
            "train step, peak",
            "compiled.train_step.peak",
            number="report.reading.measures:train_memory",
            show="memory",
            below="report.reading.measures:memory_source",
            raw="train_memory_bytes",
        ),
    ),
    charts=("report.charts.training:memory",),
)
