"""Switches of attention: their parameters, FLOPs and limits. The formulas are in `models/switches`.

H query heads, Kv dims of values.
"""

import dataclasses
from collections.abc import Callable

from ml_collections import ConfigDict

from configs.rules.attention import outputs
from models.declared.flops import Flops
from models.declared.parameter import QUERY, Identity, Parameter, Parameters, linear


def _nothing(model: ConfigDict) -> Parameters:
    return {}


def _free(model: ConfigDict) -> Flops:
    return Flops()


@dataclasses.dataclass(frozen=True)
class Switch:
    """All that the rest of the project asks of a switch, beside its formula."""

    title: str  # in docs
    fields: tuple[str, ...]  # of config.model.attention
    on: Callable[[ConfigDict], bool]  # config.model -> whether the model has it
    parameters: Callable[[ConfigDict], Parameters] = _nothing  # config.model -> of one layer's attention
    flops: Callable[[ConfigDict], Flops] = _free  # config.model -> of one layer, beside matrices and scores
    weighting: str | None = None  # the field that makes its weights no plain softmax, which only some kernels can
    unremovable: str | None = None  # why heads cannot be taken out; None: they can
    maps: bool = True  # a query's weights are a distribution over keys, as the evaluation of heads reads them


def _gate(model: ConfigDict) -> Parameters:
    gate, (heads, dims) = model.attention.gate, outputs(model)
    size = heads if gate.kind == "head" else heads * dims
    axes = ("embed" if gate.dims == model.width else None, "heads")
    kernel = linear({"attention.gate": size}, gate.dims, part="attention", axes=axes, bias=False, heads=(QUERY,))
    return {f"gate.{name}": one for name, one in kernel.items()}


def _talking(model: ConfigDict) -> Parameters:
    of = Parameter(
        shape=(model.num_heads, model.num_heads), start=Identity(), part="attention", group="vector", decay=False
    )
    return {"talking.scores": of, "talking.weights": of}


def _talking_flops(model: ConfigDict) -> Flops:
    # Two matmuls over heads for each pair of a query and a key.
    return Flops(pair=4 * model.num_heads**2, words="12 H^2 keys of talking heads")


SWITCHES: dict[str, Switch] = {
    "gate": Switch("output gate", ("gate.",), lambda model: model.attention.gate.kind != "none", _gate),
    "exclusive": Switch("exclusive self-attention (XSA)", ("exclusive",), lambda model: model.attention.exclusive),
    "talking_heads": Switch(
        "talking heads",
        ("talking_heads",),
        lambda model: model.attention.talking_heads,
        _talking,
        _talking_flops,
        weighting="model.attention.talking_heads = True",
        unremovable="heads read one another's scores",
    ),
    "sigmoid": Switch(
        "sigmoid attention",
        ("weights.sigmoid_bias",),
        lambda model: model.attention.weights.kind == "sigmoid",
        weighting="model.attention.weights.kind = 'sigmoid'",
        maps=False,
    ),
    "top_k": Switch(
        "top-k softmax",
        ("weights.top_k",),
        lambda model: model.attention.weights.kind == "top_k",
        weighting="model.attention.weights.kind = 'top_k'",
    ),
}


def active(model: ConfigDict) -> tuple[Switch, ...]:
    """Returns the switches that a config.model has."""
    return tuple(switch for switch in SWITCHES.values() if switch.on(model))


def parameters(model: ConfigDict) -> Parameters:
    """Returns the declarations of one layer's switches, beside those of its kind of attention."""
    return {name: one for switch in active(model) for name, one in switch.parameters(model).items()}
