"""Tensors of a checkpoint and our parameters: their correspondence, and the order of axes.

Ours are [L, in, out] for matrices of the blocks and [L, n] for vectors, with q, k and v separate here (`split`, `fuse`
for the fused layout). Theirs are one tensor per layer. A layout has one or more of our parameters in one of theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]
Params = dict[str, np.ndarray]
Shapes = Mapping[str, Shape]

QKV, PARTS = "blocks.attention.qkv", ("blocks.attention.query", "blocks.attention.key", "blocks.attention.value")


class Layout(Protocol):
    """The layout of one layer's parameters in one tensor; `heads` are the query heads."""

    def shape(self, parts: Sequence[Shape]) -> Shape:
        """Returns the tensor's shape."""

    def join(self, parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
        """Returns the tensor of our parameters."""

    def cut(self, tensor: np.ndarray, parts: Sequence[Shape], heads: int) -> list[np.ndarray]:
        """Returns our parameters, of shapes `parts`."""


class Rows:
    """[out, in] (torch's Linear) for ours [in, out]; several are stacked vertically. Vectors are unchanged."""

    def shape(self, parts: Sequence[Shape]) -> Shape:
        """Returns [sum of out, in]."""
        return (sum(part[-1] for part in parts), *parts[0][:-1])

    def join(self, parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
        """Returns the tensor."""
        return np.concatenate([part.T for part in parts])

    def cut(self, tensor: np.ndarray, parts: Sequence[Shape], heads: int) -> list[np.ndarray]:
        """Returns our parameters."""
        ends = np.cumsum([part[-1] for part in parts])
        return [piece.T for piece in np.split(tensor, ends[:-1])]


class Columns:
    """As ours, [in, out] (GPT-2's Conv1D), embeddings and vectors; several are concatenated horizontally."""

    def shape(self, parts: Sequence[Shape]) -> Shape:
        """Returns [in, sum of out]."""
        return (*parts[0][:-1], sum(part[-1] for part in parts))

    def join(self, parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
        """Returns the tensor."""
        return np.concatenate(parts, axis=-1)

    def cut(self, tensor: np.ndarray, parts: Sequence[Shape], heads: int) -> list[np.ndarray]:
        """Returns our parameters."""
        ends = np.cumsum([part[-1] for part in parts])
        return np.split(tensor, ends[:-1], axis=-1)


class ByHead(Rows):
    """As `Rows`, but the parts alternate head by head: [H, parts, K, in], which needs as many KV heads as heads."""

    def join(self, parts: Sequence[np.ndarray], heads: int) -> np.ndarray:
        """Returns the tensor."""
        each = [part.T.reshape(heads, -1, *part.shape[:-1]) for part in parts]
        return np.stack(each, axis=1).reshape(-1, *parts[0].shape[:-1])

    def cut(self, tensor: np.ndarray, parts: Sequence[Shape], heads: int) -> list[np.ndarray]:
        """Returns our parameters."""
        by_head = tensor.reshape(heads, len(parts), -1, *tensor.shape[1:])
        return [by_head[:, index].reshape(-1, *tensor.shape[1:]).T for index in range(len(parts))]


ROWS, COLUMNS, BY_HEAD = Rows(), Columns(), ByHead()


@dataclass(frozen=True)
class Tensor:
    """One of their tensors: `{}` in the name is the layer's number, `ours` its parameters."""

    name: str
    ours: tuple[str, ...]
    layout: Layout

    @property
    def stacked(self) -> bool:
        """Whether there is one per layer."""
        return "{}" in self.name

    def there(self, shapes: Shapes) -> bool:
        """Whether a model has these parameters (for example a bias).

        Raises:
            ValueError: it has only some of them.
        """
        results = [name in shapes for name in self.ours]
        if any(results) and not all(results):
            raise ValueError(f"{self.name}: the model has {results} of {self.ours}")
        return all(results)

    def names(self, layers: int) -> list[str]:
        """Returns the names, by layer."""
        return [self.name.format(layer) for layer in range(layers)] if self.stacked else [self.name]

    def parts(self, shapes: Shapes) -> list[Shape]:
        """Returns the shapes of our parameters, of one layer."""
        return [shapes[name][1:] if self.stacked else shapes[name] for name in self.ours]


def linear(name: str, *ours: str, layout: Layout = ROWS) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a linear map that contains our maps `ours`."""
    return (
        Tensor(f"{name}.weight", tuple(f"{part}.kernel" for part in ours), layout),
        Tensor(f"{name}.bias", tuple(f"{part}.bias" for part in ours), layout),
    )


def norm(name: str, ours: str) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a norm (RMSNorm has no bias, here and there)."""
    return Tensor(f"{name}.weight", (f"{ours}.scale",), COLUMNS), Tensor(f"{name}.bias", (f"{ours}.bias",), COLUMNS)


def split(params: Params, heads: int, groups: int, head_dim: int) -> Params:
    """Returns parameters with a fused [.., (H + 2 G) K] split into query, key and value."""
    ends = (heads * head_dim, (heads + groups) * head_dim)
    result: Params = {}
    for name, value in params.items():
        if name.startswith(f"{QKV}."):
            pieces = np.split(value, ends, axis=-1)
            result |= {f"{part}.{name.removeprefix(f'{QKV}.')}": p for part, p in zip(PARTS, pieces, strict=True)}
        else:
            result[name] = value
    return result


def fuse(params: Params) -> Params:
    """Returns parameters with query, key and value concatenated in one."""
    result = dict(params)
    for kind in ("kernel", "bias"):
        if f"{PARTS[0]}.{kind}" in result:
            pieces = [result.pop(f"{part}.{kind}") for part in PARTS]
            result[f"{QKV}.{kind}"] = np.concatenate(pieces, axis=-1)
    return result
