"""Positional schemes: the parameters, FLOPs and limits of each kind. The formulas are in `models/positions`.

H heads, K head_dim, D width.
"""

import dataclasses
from collections.abc import Callable

from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules.positions import XPOS_REACH
from models.declared.flops import Flops
from models.declared.parameter import QUERY, Constant, Matrix, Normal, Parameter, Parameters, Uniform, stacked


def _nothing(model: ConfigDict) -> Parameters:
    return {}


def _free(model: ConfigDict) -> Flops:
    return Flops()


def _anywhere(model: ConfigDict) -> int | None:
    return None


@dataclasses.dataclass(frozen=True)
class PositionKind:
    """All that the rest of the project asks of a scheme, beside its formula."""

    title: str  # in tables and docs
    module: str  # of models/positions, where its formula is
    fields: tuple[str, ...] = ()  # of config.model.position that it reads (or whole groups, "fire.")
    parameters: Callable[[ConfigDict], Parameters] = _nothing  # config.model -> of one layer
    layered: bool = False  # each layer has parameters of its own; else those of one kind share them
    flops: Callable[[ConfigDict], Flops] = _free  # config.model -> of one layer
    reach: Callable[[ConfigDict], int | None] = _anywhere  # config.model -> the most positions; None: any number
    beyond: str = ""  # says of more positions why not, {0} being the most
    removable: str | None = None  # why heads cannot be taken out; None: they can
    build: str = "build"  # the function of the module that makes it of a config.model


def _learned(model: ConfigDict) -> Parameters:
    std = model.init_std if model.init_std is not None else (model.mup_base_width or model.width) ** -0.5
    shape = (model.position.max_length, model.width)
    return {"table": Parameter(shape=shape, start=Normal(std), part="position", group="position", decay=True)}


def _t5(model: ConfigDict) -> Parameters:
    buckets, heads = model.position.t5.buckets, model.num_heads
    start = Matrix((("t5.bias", heads),), model.mup_base_width or model.width)
    return {"bias_table": _of_heads((buckets, heads), start, decay=False)}  # a bias, so it does not decay


def _t5_flops(model: ConfigDict) -> Flops:
    # A matmul of one-hot rows with the table; backward has that of the table's gradient alone.
    pair = 2 * model.position.t5.buckets * model.num_heads
    return Flops(pair=pair, training=2, words="4 buckets H keys of T5's lookup")


def _kerple(kind: str, first: float, second: float) -> Callable[[ConfigDict], Parameters]:
    """r1 and r2 of each head, drawn below the authors' (2, 1) or (1, 2); parameters of a bias, so they do not decay."""

    def parameters(model: ConfigDict) -> Parameters:
        size = (model.num_heads,)
        return {
            f"bias_{name}": _of_heads(size, Uniform(f"{kind}.{name}", below), decay=False)
            for name, below in (("r1", first), ("r2", second))
        }

    return parameters


def _fire(model: ConfigDict) -> Parameters:
    fire, heads = model.position.fire, model.num_heads

    def plain(shape: tuple[int, ...], start: Matrix | Constant, decay: bool) -> Parameter:
        return Parameter(shape=shape, start=start, part="position", group="position", decay=decay)

    hidden = (fire.hidden,)
    return {
        "hidden": plain(hidden, Matrix((("fire.hidden", fire.hidden),), 1), True),
        "hidden_bias": plain(hidden, Matrix((("fire.hidden_bias", fire.hidden),), 1), False),
        "out": _of_heads((fire.hidden, heads), Matrix((("fire.out", heads),), fire.hidden), decay=True),
        "out_bias": _of_heads((heads,), Constant(0.0), decay=False),
        "distance_scale": plain((1,), Constant(fire.c), False),
        "threshold_scale": plain((1,), Constant(1.0), False),
    }


def _fire_flops(model: ConfigDict) -> Flops:
    # The hidden layer has one input, so only the output layer is a matmul.
    return Flops(pair=2 * model.position.fire.hidden * model.num_heads, words="6 hidden H keys of FIRE's MLP")


def _cope(model: ConfigDict) -> Parameters:
    rows, dim = model.position.cope.rows, model.head_dim
    return {"table": Parameter(shape=(rows, dim), start=Constant(0.0), part="position", group="position", decay=True)}


def _cope_flops(model: ConfigDict) -> Flops:
    # Every query times every row of the table, whatever it sees.
    return Flops(token=2 * model.num_heads * model.head_dim * model.position.cope.rows, words="6 H K rows of CoPE")


def _of_heads(shape: tuple[int, ...], start: Matrix | Uniform | Constant, *, decay: bool) -> Parameter:
    """Declares numbers of each query head, on the last axis."""
    return Parameter(shape=shape, start=start, part="position", group="position", decay=decay, heads=(QUERY,))


KINDS: dict[str, PositionKind] = {
    "none": PositionKind("no positions (NoPE)", "none"),
    "learned": PositionKind(
        "learned table",
        "learned",
        ("max_length",),
        _learned,
        reach=lambda model: model.position.max_length,
        beyond="the learned table has {0} positions",
    ),
    "sinusoidal": PositionKind("sinusoidal", "sinusoidal"),
    "rope": PositionKind("RoPE", "rope", ("rope.",)),
    "p_rope": PositionKind("p-RoPE", "p_rope", ("rope.",)),
    "xpos": PositionKind(
        "xPos",
        "xpos",
        ("rope.", "xpos."),
        reach=lambda model: int(XPOS_REACH * model.position.xpos.base),
        beyond="xPos reaches {0} positions in float32",
    ),
    "alibi": PositionKind("ALiBi", "alibi", removable="its slopes depend on the number of heads"),
    "t5": PositionKind("T5 bias", "t5", ("t5.",), _t5, flops=_t5_flops),
    "kerple_log": PositionKind(
        "KERPLE, logarithmic", "kerple", (), _kerple("kerple_log", 2.0, 1.0), layered=True, build="build_log"
    ),
    "kerple_power": PositionKind(
        "KERPLE, power", "kerple", (), _kerple("kerple_power", 1.0, 2.0), layered=True, build="build_power"
    ),
    "fire": PositionKind("FIRE", "fire", ("fire.",), _fire, layered=True, flops=_fire_flops),
    "cope": PositionKind("CoPE", "cope", ("cope.",), _cope, layered=True, flops=_cope_flops),
}


def kind_of(name: str) -> PositionKind:
    """Returns a kind of scheme.

    Raises:
        ConfigError: an unknown kind.
    """
    if name not in KINDS:
        raise ConfigError(f"model.position.kind = {name!r}: must be one of {', '.join(KINDS)}{nearest(name, KINDS)}")
    return KINDS[name]


def reach(model: ConfigDict) -> tuple[int, str] | None:
    """Returns (the most positions that a config.model serves, why not more), None if there is no end."""
    results = []
    for name in tuple(model.position.pattern) or (model.position.kind,):
        kind = kind_of(name)
        if (most := kind.reach(model)) is not None:
            results.append((most, kind.beyond.format(most)))
    return min(results, default=None)


def parameters(model: ConfigDict, name: str, layers: tuple[int, ...]) -> Parameters:
    """Returns the declarations of one scheme of a config.model, which `layers` have."""
    kind = kind_of(name)
    if kind.layered:
        return stacked(kind.parameters(model), layers)
    return {path: dataclasses.replace(one, layers=layers) for path, one in kind.parameters(model).items()}
