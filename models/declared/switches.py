"""Switches of attention: their parameters, FLOPs and limits. The formulas are in `models/switches`.

H query heads, Kv dims of values.
"""

import dataclasses
from collections.abc import Callable

from ml_collections import ConfigDict

from configs.rules.attention import outputs
from models.declared.flops import Flops
from models.declared.parameter import QUERY, Identity, Matrix, Parameter, Parameters, linear, vector


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
    shared: Callable[[ConfigDict], Parameters] = _nothing  # config.model -> of the model, beside its layers
    unremovable: str | None = None  # why heads cannot be taken out; None: they can
    unjoinable: str | None = None  # why key/value heads cannot be joined; None: they can
    totals: tuple[str, ...] = ()  # kept in the cache beside keys and values: one float32 per token and layer each
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


def _value_residual(model: ConfigDict) -> Parameters:
    learned = model.attention.value_residual == "learned"
    return {"value_mix.residual_lambdas": vector(2, 0.5, part="attention")} if learned else {}


def _value_table(model: ConfigDict) -> Parameter:
    columns = model.num_kv_heads * model.head_dim
    return Parameter(
        shape=(model.vocab_size, columns),
        start=Matrix((("value_embedding", columns),), 1),
        part="embedding",
        group="embedding",
        decay=True,
        axes=("vocab", None),
    )


def _value_embedding(model: ConfigDict) -> Parameters:
    own = {"value_mix.table": _value_table(model)} if model.attention.value_embedding == "layer" else {}
    return {"value_mix.embedding_lambdas": vector(2, 0.5, part="attention"), **own}


def _shared_embedding(model: ConfigDict) -> Parameters:
    return {"value_embedding": _value_table(model)} if model.attention.value_embedding == "shared" else {}


SWITCHES: dict[str, Switch] = {
    "gate": Switch("output gate", ("gate.",), lambda model: model.attention.gate.kind != "none", _gate),
    "exclusive": Switch("exclusive self-attention (XSA)", ("exclusive",), lambda model: model.attention.exclusive),
    "value_residual": Switch(
        "value residual",
        ("value_residual",),
        lambda model: model.attention.value_residual != "none",
        _value_residual,
        unremovable="a head's values are mixed with those of the same head in the first layer",
    ),
    "value_embedding": Switch(
        "value embeddings",
        ("value_embedding",),
        lambda model: model.attention.value_embedding != "none",
        _value_embedding,
        shared=_shared_embedding,
        unremovable="tokens look up the values of all heads",
        unjoinable="tokens look up the values of all heads",
    ),
    "talking_heads": Switch(
        "talking heads",
        ("talking_heads",),
        lambda model: model.attention.talking_heads,
        _talking,
        _talking_flops,
        weighting="model.attention.talking_heads = True",
        maps=False,  # the second mixing's weights may be negative
        unremovable="heads read one another's scores",
    ),
    "sigmoid": Switch(
        "sigmoid attention",
        ("weights.sigmoid_bias",),
        lambda model: model.attention.weights.kind == "sigmoid",
        weighting="model.attention.weights.kind = 'sigmoid'",
        maps=False,
    ),
    "selective": Switch(
        "selective attention",
        ("weights.kind",),
        lambda model: model.attention.weights.kind == "selective",
        # The first head's scores are computed once more.
        flops=lambda model: Flops(pair=2 * model.head_dim, words="6 K keys of selection"),
        weighting="model.attention.weights.kind = 'selective'",
        totals=("forgotten",),
        unremovable="the first head selects what all heads forget",
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


def model_parameters(model: ConfigDict) -> Parameters:
    """Returns the declarations of what switches share between layers."""
    return {name: one for switch in active(model) for name, one in switch.shared(model).items()}


def totals(model: ConfigDict) -> tuple[str, ...]:
    """Returns the names of what a layer's cache keeps of each token beside keys and values, one float32 each."""
    return tuple(name for switch in active(model) for name in switch.totals)
