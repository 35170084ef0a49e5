"""The small parts of a block: how parameters begin, linear maps, norms and MLPs.

Parameters of the blocks are stacked: a leading axis L of layers precedes the shapes written here. The modules are
*called* on one layer's slice, which `models/transformer.py` takes.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from models import axes as names
from models.declared.parameter import Constant, Identity, Matrix, Normal, Parameter, Parameters, Uniform, under
from models.platform import current

# By kind of MLP (models/declared/mlp.py); swiglu's is that of the gate.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "swiglu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "relu": jax.nn.relu,
}


# Numbers are drawn in pieces, by few compiled functions that serve every shape of every arm: compiling a random
# generator for each shape took longer than a short run. What is smaller than a piece is its beginning: number i depends
# on the key and on i alone (`jax_threefry_partitionable`, which configs/environment.py sets).
PIECE = 2**16
SMALLER = (2**8, 2**12)


@functools.partial(jax.jit, static_argnames=("init", "count"))
def _piece(key: Array, name: Array, layer: Array, index: Array, init: str, count: int) -> Array:
    for part in (name, layer, index):
        key = jax.random.fold_in(key, part)
    if init == "normal":
        return jax.random.normal(key, (count,))
    if init == "uniform":
        return jax.random.uniform(key, (count,))
    # A normal cut at two deviations keeps this share of its spread.
    return jax.random.truncated_normal(key, -2.0, 2.0, (count,)) / 0.87962566103423978


def _draw(key: Array, name: str, shape: tuple[int, ...], layers: tuple[int, ...], init: str) -> Array | np.ndarray:
    """Returns [layers, *shape], each layer's numbers from its own key: of mean 0 and deviation 1, or even in [0, 1)."""
    size = math.prod(shape)
    pieces = -(-size // PIECE)
    count = next((count for count in SMALLER if size <= count), PIECE)
    label, which = np.uint32(zlib.crc32(name.encode())), np.arange(len(layers) * pieces, dtype=np.uint32)
    where = np.stack([np.asarray(layers, np.uint32)[which // pieces], which % pieces], axis=1)
    if isinstance(key, jax.core.Tracer):
        result = jax.lax.map(lambda at: _piece(key, label, at[0], at[1], init, count), where)
        return result.reshape(len(layers), -1)[:, :size].reshape(len(layers), *shape)
    parts = np.stack([np.asarray(_piece(key, label, layer, index, init, count)) for layer, index in where])
    return parts.reshape(len(layers), -1)[:, :size].reshape(len(layers), *shape)


def hidden_share(config: ConfigDict) -> float:
    """Returns muP's base width / width of a config.model (2203.03466, table 8): 1 in the standard parametrisation.

    It multiplies the logits, and the learning rate of every matrix whose inputs grow with width. At the base width both
    parametrisations are one.
    """
    return 1.0 if config.mup_base_width is None else config.mup_base_width / config.width


@dataclasses.dataclass(frozen=True)
class Initializer:
    """Makes the parameters that `models/declared` declares, each from the seed, its own name and its layer.

    Arms that share a parameter's shape share its first value, whatever other parameters they have, and a deeper
    model begins with the layers of a shallower one.
    """

    key: Array  # the seed's
    init: str  # truncated_normal (at two standard deviations) or normal
    std: float | None  # of every matrix; None: 1/sqrt(fan-in)
    num_layers: int
    hidden: float = 1.0  # muP: what multiplies `std` in layers' matrices, sqrt(base width / width)

    @classmethod
    def of(cls, config: ConfigDict, rngs: nnx.Rngs) -> "Initializer":
        """Reads a resolved config.model; takes one key of `rngs`."""
        hidden = math.sqrt(hidden_share(config))
        return cls(rngs.params(), config.init, config.init_std, config.num_layers, hidden)

    def named(self, name: str) -> Array:
        """Returns the key of the parameter `name`."""
        return jax.random.fold_in(self.key, zlib.crc32(name.encode()))

    def parameter(self, declared: Parameter) -> nnx.Param:
        """Returns a parameter with its first value, float32, in memory of its own; it carries its declaration."""
        return nnx.Param(jnp.array(self._start(declared)), declared=declared)

    def maybe(self, declared: Parameters, name: str) -> nnx.Param | None:
        """Returns the parameter `name`, None if it is not declared."""
        return self.parameter(declared[name]) if name in declared else None

    def _start(self, declared: Parameter) -> Array | np.ndarray:
        match declared.start:
            case Constant(value):
                return np.full(declared.full_shape, value, np.float32)
            case Identity():
                return np.broadcast_to(np.eye(declared.shape[-1], dtype=np.float32), declared.full_shape)
            case Normal(std):
                return _normal(self.key, declared.full_shape, std)
            case Uniform(name, below):
                return np.float32(below) * self._drawn(declared, name, declared.shape, "uniform")
            case Matrix(outputs, fan_in, residual):
                std = 1.0 / math.sqrt(fan_in)
                if self.std is not None:
                    std = self.std * self.hidden if declared.group == "hidden" else self.std
                std /= math.sqrt(2 * self.num_layers) if residual else 1.0
                parts = [
                    np.float32(std) * self._drawn(declared, name, (*declared.shape[:-1], columns), self.init)
                    for name, columns in outputs
                ]
                return (np.concatenate if isinstance(parts[0], np.ndarray) else jnp.concatenate)(parts, axis=-1)

    def _drawn(self, declared: Parameter, name: str, shape: tuple[int, ...], init: str) -> Array | np.ndarray:
        drawn = _draw(self.key, name, shape, declared.draws, init)
        return drawn if declared.stacked else drawn[0]


@functools.partial(jax.jit, static_argnames=("shape", "std"))
def _normal(key: Array, shape: tuple[int, ...], std: float) -> Array:
    """Returns numbers of one draw; compiled, so that its bits are the same inside a larger program and alone."""
    return std * jax.random.normal(key, shape, jnp.float32)


class Linear(nnx.Module):
    """y = x W + b, W [in, out], computed in x's dtype."""

    def __init__(self, initial: Initializer, declared: Parameters) -> None:
        self.kernel = initial.parameter(declared["kernel"])
        self.bias = initial.maybe(declared, "bias")

    @classmethod
    def maybe(cls, initial: Initializer, declared: Parameters, name: str) -> "Linear | None":
        """Returns the map `name`, None if it is not declared."""
        result = under(declared, name)
        return cls(initial, result) if result else None

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

    def __init__(self, initial: Initializer, declared: Parameters, *, kind: str, eps: float) -> None:
        self.kind = kind
        self.eps = eps
        self.scale = initial.parameter(declared["scale"])
        self.bias = initial.maybe(declared, "bias")

    @classmethod
    def maybe(
        cls, initial: Initializer, declared: Parameters, name: str, *, kind: str = "rmsnorm", eps: float
    ) -> "Norm | None":
        """Returns the norm `name`, None if it is not declared."""
        result = under(declared, name)
        return cls(initial, result, kind=kind, eps=eps) if result else None

    def __call__(self, x: Array) -> Array:
        """Returns x [..., width] normalized."""
        with jax.named_scope("norm"):
            bias = None if self.bias is None else self.bias[...]
            return recomputed(self._normalised)(x, self.scale[...], bias)

    def _normalised(self, x: Array, scale: Array, bias: Array | None) -> Array:
        y = x.astype(jnp.float32)
        if self.kind == "layernorm":
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.eps) * scale
        return (y if bias is None else y + bias).astype(x.dtype)


class MLP(nnx.Module):
    """down(f(up x)), or down(f(gate x) * (up x)) where it is gated (SwiGLU: f = SiLU, arXiv 2002.05202)."""

    def __init__(self, config: ConfigDict, initial: Initializer, declared: Parameters) -> None:
        self.activation = ACTIVATIONS[config.mlp]
        self.gate = Linear.maybe(initial, declared, "gate")
        self.up, self.down = (Linear(initial, under(declared, name)) for name in ("up", "down"))

    def __call__(self, x: Array) -> Array:
        """Returns [..., D] for x [..., D]."""
        with jax.named_scope("mlp"):
            if self.gate is None:
                return self.down(recomputed(self.activation)(self.up(x)))
            return self.down(recomputed(self._gated)(self.gate(x), self.up(x)))

    def _gated(self, gate: Array, up: Array) -> Array:
        return self.activation(gate) * up


def recomputed(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns an elementwise function whose backward pass keeps its inputs alone and computes the rest again.

    On accelerators, where memory binds: a norm in float32 would keep three arrays of 4 bytes an entry, a gated
    activation four of the hidden width. On the CPU it is the function itself.
    """
    return function if current() == "cpu" else jax.checkpoint(function)


# Bytes of a hidden activation up to which an MLP is computed at once, and the fewest tokens of a part.
MLP_PART, MLP_TOKENS = 2**24, 2048


def in_parts(function: Callable[[Array], Array], x_BTD: Array, token_bytes: int) -> Array:
    """Returns function(x), [B, T, D], by parts of the tokens, each computed again in the backward pass.

    For an MLP whose block is computed again anyway: its arrays are the largest of that pass, and in parts those of one
    part at a time. At once on the CPU, and where devices divide the tokens.

    Args:
        function: of [..., D], each token by itself.
        x_BTD: its input.
        token_bytes: of a token's hidden activation.
    """
    tokens, parts = math.prod(x_BTD.shape[:-1]), 1
    while tokens // parts * token_bytes > MLP_PART and tokens % (2 * parts) == 0 and tokens // parts > MLP_TOKENS:
        parts *= 2
    if parts == 1 or current() == "cpu" or names.divided():
        return function(x_BTD)
    x = x_BTD.reshape(parts, tokens // parts, x_BTD.shape[-1])
    return jax.lax.map(jax.checkpoint(function), x).reshape(x_BTD.shape)


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
