"""Whether kernels, layouts and decoding give the same numbers, of this device and config rather than of the run."""

from configs.evaluations.evaluation import Evaluation

EVALUATION = Evaluation(name="equivalence", module="eval.equivalence", kind="check", default=False)
