"""Answers right in a retrieval task, by length, depth and number of needles."""

from configs.evaluations.evaluation import Column, Evaluation, Measure, Shared

EVALUATION = Evaluation(
    name="retrieval",
    module="eval.quality.retrieval",
    kind="quality",
    measures=(Measure("retrieval", "share", ("accuracy",), line="accuracy {:.1%}"),),
    columns=(
        Column("retrieval", "retrieval at every length measured"),
        Column("effective", "effective length of retrieval"),
    ),
    charts=(
        "report.charts.lengths:retrieval_by_length",
        "report.charts.lengths:retrieval_by_scaling",
        "report.charts.grid:retrieval_by_pairs",
        "report.charts.grid:heat_map",
        "report.charts.grid:exact_matches",
    ),
    resolved=("task", "pairs", "questions"),
    lists=("eval.multiples", "eval.lengths", "eval.scalings"),
    shared=(Shared("task", "retrieval task", "report.reading.measures:task"),),
)
