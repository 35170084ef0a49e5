"""AdamW: Adam (1412.6980) with decoupled weight decay (1711.05101)."""

from collections.abc import Mapping
from typing import Any

from training.step.optimizers.optimizer import Optimizer


def _build(values: Mapping[str, Any]) -> Any:
    import optax

    return optax.scale_by_adam(values["beta1"], values["beta2"], values["eps"])


ADAMW = Optimizer("adamw", fields=("beta1", "beta2", "eps"), build=_build, state=2)
