"""Logical names of arrays' axes: all that models know of devices.

A model says what an axis is ("batch", "heads", "embed"); a table from such names to the axes of a device mesh, which
`training/step/mesh.py` makes, says over which devices it is divided. Without a table nothing here does anything.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Names = Sequence[str | None]  # one for each axis of an array; None: not divided


@dataclasses.dataclass(frozen=True)
class Rules:
    """Over which axes of a mesh each logical axis is divided."""

    mesh: Mesh
    table: tuple[tuple[str, tuple[str, ...]], ...]

    def over(self, name: str | None) -> tuple[str, ...]:
        """Returns the mesh axes of a logical axis, those of one device left out."""
        result = dict(self.table).get(name, ()) if name is not None else ()
        return tuple(axis for axis in result if self.mesh.shape[axis] > 1)

    def shards(self, name: str | None) -> int:
        """Returns into how many parts a logical axis is cut."""
        return math.prod(self.mesh.shape[axis] for axis in self.over(name))

    def spec(self, names: Names, shape: Sequence[int]) -> PartitionSpec:
        """Returns how an array of `shape` lies; an axis that its devices do not divide is not divided."""
        parts: list[Any] = []
        for name, size in zip(names, shape, strict=True):
            axes = self.over(name) if size % self.shards(name) == 0 else ()
            parts.append(axes if len(axes) > 1 else axes[0] if axes else None)
        return PartitionSpec(*parts)

    def sharding(self, names: Names, shape: Sequence[int]) -> NamedSharding:
        """Returns `spec` on the mesh."""
        return NamedSharding(self.mesh, self.spec(names, shape))


_FOLLOWED: contextvars.ContextVar[Rules | None] = contextvars.ContextVar("rules", default=None)


@contextlib.contextmanager
def following(rules: Rules | None) -> Iterator[None]:
    """Within it, functions that are traced divide their arrays by `rules`."""
    token = _FOLLOWED.set(rules)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)


def divided() -> bool:
    """Returns whether arrays are divided here at all."""
    return _FOLLOWED.get() is not None


def shards(name: str) -> int:
    """Returns into how many parts a logical axis is cut; 1 without rules."""
    rules = _FOLLOWED.get()
    return 1 if rules is None else rules.shards(name)


def constrain(x: Array, *names: str | None) -> Array:
    """Returns x, divided by the names of its axes."""
    rules = _FOLLOWED.get()
    if rules is None:
        return x
    return jax.lax.with_sharding_constraint(x, rules.sharding(names, x.shape))


def locally(function: Callable[..., Array], inputs: Sequence[Names], output: Names, arguments: Sequence[Array]) -> Any:
    """Calls a function on every device with that device's parts of the arguments alone: nothing is sent within it.

    Arrays that the function closes over are there whole, and gradients reach them. The output is cut as the first
    argument of which an axis has the same name.
    """
    rules = _FOLLOWED.get()
    assert rules is not None
    specs = [rules.spec(names, x.shape) for names, x in zip(inputs, arguments, strict=True)]
    cut: dict[str | None, Any] = {}
    for names, spec in zip(inputs, specs, strict=True):
        cut = {**dict(zip(names, spec, strict=True)), **cut}
    out = PartitionSpec(*(cut.get(name) if name is not None else None for name in output))
    return jax.shard_map(function, mesh=rules.mesh, in_specs=tuple(specs), out_specs=out, check_vma=False)(*arguments)


def part(name: str) -> Array:
    """Returns, within `locally`, which of the `shards(name)` parts of a logical axis is here, int32."""
    rules = _FOLLOWED.get()
    assert rules is not None
    return jax.lax.axis_index(rules.over(name))
