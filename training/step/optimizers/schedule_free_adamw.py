"""Schedule-free AdamW: an average of the parameters replaces momentum and decay (2405.15682).

The state has z, which the optimizer moves. A run's parameters are the average x, which is evaluated and saved.
Gradients are taken at y = beta1 x + (1 - beta1) z (`training/step/optimizer.py`).
"""

from typing import Any

from training.step.optimizers.optimizer import Optimizer, Values, moments


def _build(values: Values) -> Any:
    import optax

    # Adam without a first moment, as in optax.contrib.schedule_free_adamw.
    return optax.scale_by_rms(values["beta2"], eps=values["eps"], eps_in_sqrt=False, bias_correction=True)


SCHEDULE_FREE_ADAMW = Optimizer(
    "schedule_free_adamw", _build, moments(2, counters=5), averages=lambda values: values["beta1"]
)
