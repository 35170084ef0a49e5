"""Lion: the sign of an interpolation between momentum and gradient (2302.06675)."""

from typing import Any

from training.step.optimizers.optimizer import Optimizer, Values, moments


def _build(values: Values) -> Any:
    import optax

    return optax.scale_by_lion(values["beta1"], values["beta2"])


LION = Optimizer("lion", _build, moments(1, counters=1))
