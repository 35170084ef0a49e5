"""Where the time of a training step, of prefill and of decoding goes."""

from configs.evaluations.evaluation import Evaluation

EVALUATION = Evaluation(
    name="profile",
    module="eval.cost.profile",
    kind="cost",
    default=False,  # it wants a machine with nothing else to do
    timed=True,
    charts=("report.charts.profile:where_time_goes",),
)
