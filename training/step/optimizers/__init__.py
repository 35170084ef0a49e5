"""The optimizers, one file and one line each. Imports no JAX: the size of their state is needed before JAX starts."""

from typing import Any

from ml_collections import ConfigDict

from configs import base
from configs.errors import ConfigError, nearest
from models.declared import model as declared
from training.step.optimizers.adafactor import ADAFACTOR
from training.step.optimizers.adamw import ADAMW
from training.step.optimizers.lion import LION
from training.step.optimizers.muon import MUON
from training.step.optimizers.optimizer import Optimizer
from training.step.optimizers.schedule_free_adamw import SCHEDULE_FREE_ADAMW

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer for optimizer in (ADAMW, MUON, LION, ADAFACTOR, SCHEDULE_FREE_ADAMW)
}


def optimizer(kind: str) -> Optimizer:
    """Returns the optimizer of `config.optimizer.kind`.

    Raises:
        ConfigError: there is none with that name.
    """
    if kind not in OPTIMIZERS:
        raise ConfigError(
            f"optimizer.kind = {kind!r}: must be one of {', '.join(OPTIMIZERS)}{nearest(kind, OPTIMIZERS)}"
        )
    return OPTIMIZERS[kind]


def values(config: ConfigDict) -> dict[str, Any]:
    """Returns the static fields of a config.optimizer that its optimizer reads, by dotted name."""
    results = {}
    for name in optimizer(config.kind).fields:
        if base.SCHEMA[f"optimizer.{name}"].static:
            node = config
            for part in name.split("."):
                node = node[part]
            results[name] = node
    return results


def state_bytes(model: ConfigDict, config: ConfigDict) -> int:
    """Returns the size of the state of a config.optimizer, including counters.

    Args:
        model: config.model, resolved and with `vocab_size`.
        config: config.optimizer.
    """
    return 4 * optimizer(config.kind).state(declared.parameters(model).values(), values(config))
