"""Tokens a second of training, prefill and decoding."""

from configs.evaluations.evaluation import Column, Evaluation, Measure


def _speed(program: str) -> Measure:
    keys = (program, "tokens_per_second"), (program, "spread")
    return Measure(f"{program}_tokens_per_second", "tokens/s", *keys, line=f"{program} {{:,.0f}} tokens/s")


def _column(program: str, meaning: str, default: bool = True) -> Column:
    source, raw = f"{program}.tokens_per_second", f"{program}_tokens_per_second"
    shown = (program, meaning, program, "tokens/s", source)
    return Column(*shown, show="count", ends=(program, "spread"), raw=raw, default=default)


EVALUATION = Evaluation(
    name="throughput",
    module="eval.cost.throughput",
    kind="cost",
    timed=True,
    measures=(_speed("train"), _speed("prefill"), _speed("decode")),
    columns=(
        _column("train", "training speed, tokens/s"),
        _column("prefill", "prefill speed, tokens/s", default=False),
        _column("decode", "decoding speed, tokens/s"),
    ),
    charts=("report.charts.training:speeds",),
)
