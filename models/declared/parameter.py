"""The declaration of one parameter: its shape, its first value, and what the rest of the project must know of it."""

import dataclasses
import math
from collections.abc import Mapping

PARTS = ("embedding", "position", "attention", "mlp", "norm", "head")  # of counts
GROUPS = ("embedding", "head", "hidden", "vector", "position")  # of optimizers
QUERY, KV = "query", "kv"  # head surgery: an axis of H query heads, or of G key/value heads


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Drawn at 1/sqrt(fan_in) (or `init_std`); several names are drawn apart and laid side by side on the last axis."""

    outputs: tuple[tuple[str, int], ...]  # (name that makes the random key, columns)
    fan_in: int
    residual: bool = False  # writes to the residual stream: smaller by sqrt(2 L)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Drawn evenly from [0, below)."""

    name: str
    below: float


@dataclasses.dataclass(frozen=True)
class Constant:
    """One value."""

    value: float


@dataclasses.dataclass(frozen=True)
class Identity:
    """Ones on the diagonal of a square matrix, zeros elsewhere."""


@dataclasses.dataclass(frozen=True)
class Normal:
    """Drawn from a normal distribution by one call of JAX, with the scheme's own key."""

    std: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a model.

    Raises:
        ValueError: an unknown part or group, or axes that are not one for each axis of the shape.
    """

    shape: tuple[int, ...]  # of one layer where `stacked`
    start: Matrix | Uniform | Constant | Identity | Normal  # its first value
    part: str  # of PARTS, where it is counted
    group: str  # of GROUPS: hidden is a matrix between activations, vector a bias, a norm's scale or a sink
    decay: bool  # weight decay acts on it
    cast: bool = False  # matmuls read it in the compute dtype, so a loop of steps may cast it once beforehand
    multiplies: bool = False  # a matmul of every token reads it: part of N in FLOPs
    axes: tuple[str | None, ...] = ()  # logical axes (models/axes.py), one for each of `shape`; empty: none is divided
    heads: tuple[str, ...] = ()  # what lies side by side on `head_axis`: QUERY or KV; empty: no head owns a part
    head_axis: int = -1
    layers: tuple[int, ...] = ()  # the layers that it serves; empty: it is of no layer
    stacked: bool = False  # an axis of `layers` precedes `shape`; else they share one

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"part = {self.part!r}: must be one of {', '.join(PARTS)}")
        if self.group not in GROUPS:
            raise ValueError(f"group = {self.group!r}: must be one of {', '.join(GROUPS)}")
        if self.axes and len(self.axes) != len(self.shape):
            raise ValueError(f"axes = {self.axes!r}: must name each axis of {self.shape}")

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the array, layers included."""
        return (len(self.layers), *self.shape) if self.stacked else self.shape

    @property
    def draws(self) -> tuple[int, ...]:
        """What makes the random key of each array of the stack: its layer, or its place among those of a scheme."""
        if not self.stacked:
            return (0,)
        return tuple(range(len(self.layers))) if self.part == "position" else self.layers

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return math.prod(self.full_shape)


Parameters = dict[str, Parameter]  # by dotted path, as on disk


def linear(
    outputs: Mapping[str, int],
    width: int,
    *,
    part: str,
    axes: tuple[str | None, str | None],
    bias: bool,
    residual: bool = False,
    heads: tuple[str, ...] = (),
    head_axis: int = -1,
) -> Parameters:
    """Declares y = x W + b, W [width, out] and b [out]: `kernel`, and `bias` if there is one.

    Args:
        outputs: columns by the name that makes their random key; several lie side by side.
        width: of x.
        part: where it is counted.
        axes: names of in and out.
        bias: whether there is one.
        residual: whether y is added to the residual stream.
        heads: what lies on `head_axis`.
        head_axis: -1: the outputs are of heads, -2: the inputs.
    """
    size = sum(outputs.values())
    kernel = Parameter(
        shape=(width, size),
        start=Matrix(tuple(outputs.items()), width, residual),
        part=part,
        group="hidden",
        decay=True,
        cast=True,
        multiplies=True,
        axes=axes,
        heads=heads,
        head_axis=head_axis,
    )
    if not bias:
        return {"kernel": kernel}
    by_head = heads if head_axis == -1 else ()
    axis = (None if axes[1] == "embed" else axes[1],)
    return {"kernel": kernel, "bias": vector(size, 0.0, part=part, cast=True, axes=axis, heads=by_head)}


def vector(
    size: int,
    value: float,
    *,
    part: str,
    cast: bool = False,
    axes: tuple[str | None, ...] = (),
    heads: tuple[str, ...] = (),
) -> Parameter:
    """Declares a vector [size] that starts at one value and does not decay."""
    return Parameter(
        shape=(size,), start=Constant(value), part=part, group="vector", decay=False, cast=cast, axes=axes, heads=heads
    )


def norm(width: int, *, bias: bool = False) -> Parameters:
    """Declares a norm over `width`: `scale`, and `bias` if there is one."""
    scale = vector(width, 1.0, part="norm")
    return {"scale": scale, "bias": vector(width, 0.0, part="norm")} if bias else {"scale": scale}


def nested(parts: Mapping[str, Parameters]) -> Parameters:
    """Returns the declarations of parts under their names: {"query": {"kernel": ...}} gives "query.kernel"."""
    return {f"{name}.{path}": one for name, part in parts.items() for path, one in part.items()}


def under(declared: Parameters, name: str) -> Parameters:
    """Returns what `nested` put under a name."""
    return {path.removeprefix(f"{name}."): one for path, one in declared.items() if path.startswith(f"{name}.")}


def stacked(declared: Parameters, layers: tuple[int, ...]) -> Parameters:
    """Returns declarations of which each of `layers` has its own."""
    return {path: dataclasses.replace(one, layers=layers, stacked=True) for path, one in declared.items()}
