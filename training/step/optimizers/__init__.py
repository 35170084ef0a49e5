"""The optimizers, a file and a line each. Imports no JAX: what an optimizer holds is asked before JAX starts."""

from configs.errors import ConfigError, nearest
from training.step.optimizers.adamw import ADAMW
from training.step.optimizers.optimizer import Optimizer

OPTIMIZERS: dict[str, Optimizer] = {optimizer.name: optimizer for optimizer in (ADAMW,)}


def optimizer(kind: str) -> Optimizer:
    """Returns the optimizer of `config.optimizer.kind`.

    Raises:
        ConfigError: there is none of that name.
    """
    if kind not in OPTIMIZERS:
        raise ConfigError(
            f"optimizer.kind = {kind!r}: must be one of {', '.join(OPTIMIZERS)}{nearest(kind, OPTIMIZERS)}"
        )
    return OPTIMIZERS[kind]
