"""The small parts of a block: how parameters begin, linear maps, norms and MLPs.

Parameters of the blocks are stacked: a leading axis L of layers stands before the shapes written here. The modules are
*called* on one layer's slice, which `models/transformer.py` takes.
"""

import dataclasses
import functools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from models import axes as names
from models.platform import current

MLPS = ("swiglu", "gelu", "gelu_exact", "relu2", "relu")
NORMS = ("rmsnorm", "layernorm")
INITS = ("truncated_normal", "normal")


# Numbers are drawn in pieces of one size, by one compiled function that serves every shape of every arm: compiling a
# random generator for each shape took longer than a short run.
PIECE = 2**16


@functools.partial(jax.jit, static_argnames="init")
def _piece(key: Array, name: Array, layer: Array, index: Array, init: str) -> Array:
    for part in (name, layer, index):
        key = jax.random.fold_in(key, part)
    if init == "normal":
        return jax.random.normal(key, (PIECE,))
    if init == "uniform":
        return jax.random.uniform(key, (PIECE,))
    # A normal cut at two deviations keeps this share of its spread.
    return jax.random.truncated_normal(key, -2.0, 2.0, (PIECE,)) / 0.87962566103423978


def _draw(key: Array, name: str, shape: tuple[int, ...], layers: int, init: str) -> Array | np.ndarray:
    """Returns numbers [layers, *shape], each layer's from its own key: of mean 0 and deviation 1, or even in [0, 1)."""
    size = math.prod(shape)
    pieces = -(-size // PIECE)
    label, which = np.uint32(zlib.crc32(name.encode())), np.arange(layers * pieces, dtype=np.uint32)
    where = np.stack([which // pieces, which % pieces], axis=1)
    if isinstance(key, jax.core.Tracer):
        found = jax.lax.map(lambda at: _piece(key, label, at[0], at[1], init), where)
        return found.reshape(layers, -1)[:, :size].reshape(layers, *shape)
    parts = np.stack([np.asarray(_piece(key, label, layer, index, init)) for layer, index in where])
    return parts.reshape(layers, -1)[:, :size].reshape(layers, *shape)


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Draws parameters, each from the seed, its own name and its layer.

    Arms that share a parameter's shape share its first value, whatever other parameters they have, and a deeper
    model begins with the layers of a shallower one.
    """

    key: Array  # the seed's
    init: str  # truncated_normal (at two standard deviations) or normal
    std: float | None  # of every matrix; None: 1/sqrt(fan-in)
    num_layers: int

    @classmethod
    def of(cls, config: ConfigDict, rngs: nnx.Rngs) -> "Initializer":
        """Reads a resolved config.model; takes one key of `rngs`."""
        return cls(rngs.params(), config.init, config.init_std, config.num_layers)

    def named(self, name: str) -> Array:
        """Returns the key of the parameter `name`."""
        return jax.random.fold_in(self.key, zlib.crc32(name.encode()))

    def matrix(
        self, name: str, shape: tuple[int, ...], *, fan_in: int, stacked: bool, residual: bool = False
    ) -> Array | np.ndarray:
        """Returns a float32 matrix of `shape`, behind an axis of layers where `stacked`.

        Args:
            name: makes the key.
            shape: of one layer.
            fan_in: how many products each output sums.
            stacked: whether there is one for each layer.
            residual: it writes to the residual stream, so it starts smaller by sqrt(2 L) (GPT-2).
        """
        std = self.std if self.std is not None else 1.0 / math.sqrt(fan_in)
        if residual:
            std /= math.sqrt(2 * self.num_layers)
        drawn = np.float32(std) * _draw(self.key, name, shape, self.num_layers if stacked else 1, self.init)
        return drawn if stacked else drawn[0]

    def uniform(self, name: str, size: int, below: float) -> Array | np.ndarray:
        """Returns a vector [size] for each layer, drawn evenly from [0, below)."""
        return np.float32(below) * _draw(self.key, name, (size,), self.num_layers, "uniform")

    def constant(self, value: float, size: int, *, stacked: bool) -> np.ndarray:
        """Returns a vector [size] of one value, behind an axis of layers where `stacked`."""
        return np.full((self.num_layers, size) if stacked else (size,), value, np.float32)


def parameter(value: Array | np.ndarray, *axes: str | None) -> nnx.Param:
    """Returns a parameter of its own memory; `axes` names its last axes (`models/axes.py`)."""
    if not axes:
        return nnx.Param(jnp.array(value))
    names = (*[None] * (np.ndim(value) - len(axes)), *axes)
    return nnx.Param(jnp.array(value), out_sharding=names, eager_sharding=False)


class Linear(nnx.Module):
    """y = x W + b, W [in, out], computed in x's dtype.

    Several `outputs` are drawn apart and laid side by side, so that one wide matrix starts as the same function as the
    narrow ones. `axes` names in and out.
    """

    def __init__(
        self,
        initial: Initializer,
        width: int,
        outputs: dict[str, int],
        *,
        axes: tuple[str | None, str | None],
        bias: bool,
        residual: bool = False,
        stacked: bool = True,
    ) -> None:
        parts = [
            initial.matrix(name, (width, size), fan_in=width, stacked=stacked, residual=residual)
            for name, size in outputs.items()
        ]
        side_by_side = np.concatenate if isinstance(parts[0], np.ndarray) else jnp.concatenate
        self.kernel = parameter(side_by_side(parts, axis=-1), *axes)
        zeros = initial.constant(0.0, sum(outputs.values()), stacked=stacked)
        self.bias = parameter(zeros, None if axes[1] == "embed" else axes[1]) if bias else None

    def __call__(self, x: Array) -> Array:
        """Returns [..., out] in x's dtype for x [..., in]."""
        y = matmul(x, self.kernel[...].astype(x.dtype))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


def matmul(x: Array, w: Array, dtype: DTypeLike | None = None) -> Array:
    """Returns x @ w, [..., out] for x [..., in] and w [in, out], added up and given in `dtype` (None: x's).

    On the CPU the product is made of two axes: the gradient of w would sum over several, for which XLA transposes x,
    and whatever x was made by runs transposed with it (SiLU's derivative took 48 ms and not 6 in a layer). Elsewhere,
    and where devices share the tokens of a row, the axes stay apart: one that is divided cannot be made part of another
    without every device having all of it.
    """
    if x.ndim <= 2 or current() != "cpu" or names.shards("length") > 1:
        return jnp.matmul(x, w, preferred_element_type=dtype)
    out = jnp.matmul(x.reshape(-1, x.shape[-1]), w, preferred_element_type=dtype)
    return out.reshape(*x.shape[:-1], w.shape[-1])


class Norm(nnx.Module):
    """RMSNorm x / sqrt(mean(x^2) + eps) * g (arXiv 1910.07467), or LayerNorm (x - mean) / sqrt(var + eps) * g + b.

    Computed in float32 over the last axis, returned in x's dtype.
    """

    def __init__(
        self, initial: Initializer, width: int, *, kind: str, bias: bool, eps: float, stacked: bool = True
    ) -> None:
        self.kind = kind
        self.eps = eps
        self.scale = parameter(initial.constant(1.0, width, stacked=stacked))
        has_bias = bias and kind == "layernorm"
        self.bias = parameter(initial.constant(0.0, width, stacked=stacked)) if has_bias else None

    def __call__(self, x: Array) -> Array:
        """Returns x [..., width] normalised."""
        with jax.named_scope("norm"):
            y = x.astype(jnp.float32)
            if self.kind == "layernorm":
                y = y - jnp.mean(y, axis=-1, keepdims=True)
            y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.eps) * self.scale[...]
            if self.bias is not None:
                y = y + self.bias[...]
            return y.astype(x.dtype)


class MLP(nnx.Module):
    """down(f(up x)), or down(silu(gate x) * (up x)) for SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: ConfigDict, initial: Initializer) -> None:
        self.kind = config.mlp
        width, hidden, bias = config.width, config.mlp_width, config.mlp_bias
        into: tuple[str, str] = ("embed", "mlp")
        gated = self.kind == "swiglu"
        self.gate = Linear(initial, width, {"mlp.gate": hidden}, axes=into, bias=bias) if gated else None
        self.up = Linear(initial, width, {"mlp.up": hidden}, axes=into, bias=bias)
        self.down = Linear(initial, hidden, {"mlp.down": width}, axes=("mlp", "embed"), bias=bias, residual=True)

    def __call__(self, x: Array) -> Array:
        """Returns [..., D] for x [..., D]."""
        with jax.named_scope("mlp"):
            if self.gate is None:
                return self.down(activation(self.kind, self.up(x)))
            return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def activation(kind: str, x: Array) -> Array:
    """Returns f(x) for an MLP without a gate."""
    match kind:
        case "gelu":
            return jax.nn.gelu(x, approximate=True)
        case "gelu_exact":
            return jax.nn.gelu(x, approximate=False)
        case "relu2":
            return jnp.square(jax.nn.relu(x))
        case "relu":
            return jax.nn.relu(x)
    raise ValueError(f"mlp = {kind!r}: must be one of {', '.join(MLPS)}")


def soft_cap(x: Array, cap: float | None) -> Array:
    """Returns cap * tanh(x / cap), which stays within +-cap; x itself without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Returns x with each entry zeroed at `rate` and the others scaled up by 1/(1 - rate); x itself without a key."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def compute_dtype(config: ConfigDict, platform: str | None = None) -> DTypeLike:
    """Returns the dtype of activations: config.model.dtype, `auto` being float32 on the CPU and bfloat16 elsewhere."""
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    return jnp.dtype(jnp.float32 if (platform or current()) == "cpu" else jnp.bfloat16)
