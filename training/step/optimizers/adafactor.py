"""Adafactor: second moments of a matrix from those of its rows and columns (1804.04235), without momentum.

Its clipping and its scale are per matrix. Parameters are stacked [L, ...], so each layer is processed separately.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from models.declared.parameter import Parameter
from training.step.optimizers.optimizer import Optimizer, Values


def _stack(declared: Parameter) -> int:
    """Returns the number of layers in a stacked parameter; 0: it is one array."""
    return len(declared.layers) if declared.stacked else 0


def _build(values: Values) -> Any:
    import jax
    import optax

    from models.metadata import each

    one = optax.chain(
        optax.adafactor(
            min_dim_size_to_factor=values["adafactor.factor_from"],
            decay_rate=values["adafactor.decay_rate"],
            clipping_threshold=values["adafactor.clip_threshold"] or None,
            multiply_by_parameter_scale=values["adafactor.parameter_scale"],
        ),
        optax.scale(-1.0),  # optax's updates point downhill
    )
    each_layer = optax.GradientTransformation(jax.vmap(one.init), jax.vmap(one.update))

    def parted(params: Any) -> optax.GradientTransformation:
        stacks = each(params, lambda declared: str(_stack(declared)))
        names = set(jax.tree.leaves(stacks))
        return optax.partition({name: one if name == "0" else each_layer for name in names}, stacks)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return parted(updates).update(updates, state, params)

    return optax.GradientTransformation(lambda params: parted(params).init(params), update)


def _state(declared: Iterable[Parameter], values: Values) -> int:
    counters, total = defaultdict[int, int](int), 0
    for parameter in declared:
        layers = _stack(parameter)
        counters[layers] = max(1, layers)
        total += max(1, layers) * _of_one(parameter.shape, values["adafactor.factor_from"])
    return total + sum(counters.values())


def _of_one(shape: tuple[int, ...], factor_from: int) -> int:
    """Returns the numbers of one array's state: rows and columns, or the whole array; absent ones are one number."""
    size, dims = 1, sorted(shape)
    for dim in dims:
        size *= dim
    if len(dims) < 2 or dims[-2] < factor_from:
        return size + 2
    return size // dims[-1] + size // dims[-2] + 1


ADAFACTOR = Optimizer("adafactor", _build, _state)
