"""The evaluations. An evaluation is one file here with one object, a line in EVALUATIONS, and its code in `eval`.

They are declared here and not in `eval`, for sweeps and reports read them without JAX.
"""

from configs.evaluations import equivalence, heads, loss, memory, profile, retrieval, throughput
from configs.evaluations.evaluation import Column, Evaluation, Measure, Shared, load

__all__ = ["EVALUATIONS", "RESULTS", "Column", "Evaluation", "Measure", "Shared", "load", "of_kind"]

EVALUATIONS: dict[str, Evaluation] = {
    "loss": loss.EVALUATION,
    "retrieval": retrieval.EVALUATION,
    "throughput": throughput.EVALUATION,
    "memory": memory.EVALUATION,
    "profile": profile.EVALUATION,
    "heads": heads.EVALUATION,
    "equivalence": equivalence.EVALUATION,
}
# Every result file that is written into a run's eval/: those of other programs too, which `--evals` does not name.
RESULTS: dict[str, Evaluation] = {
    **EVALUATIONS,
    "harness": Evaluation(name="harness", module="eval.harness", kind="outside", default=False),
}


def of_kind(kind: str) -> tuple[str, ...]:
    """Returns the names of the evaluations of a kind."""
    return tuple(name for name, evaluation in EVALUATIONS.items() if evaluation.kind == kind)
