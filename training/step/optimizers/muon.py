"""Muon: momentum, orthogonalized by Newton-Schulz iterations (Jordan 2024; 2502.16982).

It acts on the matrices between activations, by their declarations (group "hidden"). They are stacked [L, in, out]: each
layer's is orthogonalized separately. Matrices stored side by side in one array (`linear` with several outputs) are one
matrix here. Embeddings, the output matrix, positional parameters, norms and biases use AdamW.
"""

from collections.abc import Iterable
from typing import Any

from models.declared.parameter import Parameter
from training.step.optimizers.optimizer import Optimizer, Values

COUNTERS = 5  # Muon's step and three coefficients, Adam's step


def _matrix(declared: Parameter) -> bool:
    """Returns whether Muon acts on a parameter.

    Raises:
        ValueError: it is declared as a matrix between activations and does not have two axes.
    """
    if declared.group != "hidden":
        return False
    if len(declared.shape) != 2:
        raise ValueError(f"a parameter of group 'hidden' has the shape {declared.shape}; Muon needs [in, out]")
    return True


def _build(values: Values) -> Any:
    import jax
    import optax
    from optax import contrib

    from models.metadata import each

    def dims(updates: Any) -> Any:
        return each(updates, lambda _: contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1))

    def factor(declared: Parameter) -> float:
        # As in optax.contrib.muon. It is also called for other parameters, which have no update here.
        return max(1.0, declared.shape[1] / declared.shape[0]) ** 0.5 if _matrix(declared) else 1.0

    def shaped(updates: Any, _: Any = None) -> Any:
        return jax.tree.map(lambda u, times: times * u, updates, each(updates, factor))

    # Not optax.contrib.muon itself: its AdamW has Nesterov momentum wherever Muon has it.
    muon = contrib.scale_by_muon(
        ns_steps=values["muon.steps"],
        beta=values["muon.momentum"],
        nesterov=values["muon.nesterov"],
        weight_dimension_numbers=dims,
    )
    parts = {
        "muon": optax.chain(muon, optax.stateless(shaped)),
        "adam": optax.scale_by_adam(values["beta1"], values["beta2"], values["eps"]),
    }
    return optax.partition(parts, lambda params: each(params, lambda one: "muon" if _matrix(one) else "adam"))


def _state(declared: Iterable[Parameter], _: Values) -> int:
    return sum(one.size if _matrix(one) else 2 * one.size for one in declared) + COUNTERS


MUON = Optimizer("muon", _build, _state, own_rate=_matrix)
