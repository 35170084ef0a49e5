"""What an optimizer is to the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, without clipping, decoupled weight decay and the learning rate, which are the same for all.

    Attributes:
        name: of `config.optimizer.kind`.
        fields: of `config.optimizer` that it reads; it is given no others.
        build: from their values to an `optax.GradientTransformation` that turns gradients into the direction of the
            update. It imports JAX itself.
        state: float32 numbers that it holds for each parameter, without counters.
    """

    name: str
    fields: tuple[str, ...]
    build: Callable[[Mapping[str, Any]], Any]
    state: float
