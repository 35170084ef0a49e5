"""The interface of an optimizer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from configs.rules.optimizer import KINDS
from models.declared.parameter import Parameter

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, without clipping, decoupled weight decay and the learning rate, which are the same for all.

    The fields of `config.optimizer` that it reads are declared in `configs/rules/optimizer.py`; it gets no others.

    Attributes:
        name: of `config.optimizer.kind`.
        build: from the values of its fields (dotted names) to an `optax.GradientTransformation` that turns gradients
            into the direction of the update. It imports JAX itself.
        state: from the declarations of all parameters and the values of its fields to the number of 4-byte numbers in
            its state, including counters.
        own_rate: whether a parameter follows the learning rate `optimizer.NAME.learning_rate` instead of
            `optimizer.learning_rate`; muP's factor does not reach it. None: no parameter does.
        averages: beta1 > 0 of schedule-free averaging (2405.15682) from the values, around `build` and the following
            transformations. None: nothing is averaged.
    """

    name: str
    build: Callable[[Values], Any]
    state: Callable[[Iterable[Parameter], Values], int]
    own_rate: Callable[[Parameter], bool] | None = None
    averages: Callable[[Values], float] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of `config.optimizer` that are specific to it."""
        return KINDS[self.name]


def moments(number: int, counters: int) -> Callable[[Iterable[Parameter], Values], int]:
    """Returns the size of a state with `number` numbers per number of the parameters, and some counters."""
    return lambda declared, _: number * sum(one.size for one in declared) + counters
