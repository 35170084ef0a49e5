"""AdamW: Adam (1412.6980) with decoupled weight decay (1711.05101)."""

from typing import Any

from training.step.optimizers.optimizer import Optimizer, Values, moments


def _build(values: Values) -> Any:
    import optax

    return optax.scale_by_adam(values["beta1"], values["beta2"], values["eps"])


ADAMW = Optimizer("adamw", _build, moments(2, counters=1))
