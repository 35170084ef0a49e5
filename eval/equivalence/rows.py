"""A comparison: what was compared with what, the error, and its tolerance."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# Tolerance of a tensor's error, relative to the reference's largest number. A float32 matmul summed in another order
# changes by about 1e-6; bfloat16 rounds at 2^-8, and a gradient passes through many roundings.
TOLERANCES: dict[str, dict[str, float]] = {
    "float32": {"output": 5e-5, "gradient": 2e-4},
    "bfloat16": {"output": 2**-5, "gradient": 2**-4},
}
# A gradient that is mathematically zero (such as a key bias's, which softmax ignores) is noise; its error is measured
# relative to this share of the largest gradient.
LEAST_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `reason` says why there is nothing to compare; then there are no errors.

    `fails`: it should have run, and raised instead; `reason` is its message.
    """

    what: str  # what was tested
    against: str  # what it must equal
    part: str  # output or gradient
    dtype: str
    where: str = ""  # the layers, or the rows, of the test
    absolute: float | None = None  # largest difference
    relative: float | None = None  # the same, over the largest number of its tensor
    tolerance: float | None = None  # of `relative`
    worst: str = ""  # the tensor with the largest error
    note: str = ""  # how it was run, if unusual
    reason: str | None = None
    fails: bool = False

    @property
    def exceeded(self) -> bool:
        """Whether the tolerance is exceeded, which a NaN does, or the program failed."""
        return self.fails or (
            self.reason is None and not (self.relative is not None and self.relative <= (self.tolerance or 0.0))
        )

    @property
    def entry(self) -> dict[str, Any]:
        """The row for a JSON file."""
        return {**dataclasses.asdict(self), "exceeded": self.exceeded}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outputs of a program: tensors by name."""

    output: Mapping[str, Any]
    gradient: Mapping[str, Any] | None = None


def compared(row: Row, got: Outcome, expected: Outcome, tolerances: Mapping[str, float] | None = None) -> list[Row]:
    """Returns a row for the output and, if both have them, one for the gradients.

    Args:
        row: what is compared; its `part` and errors are filled in.
        got: the tested outputs.
        expected: what they must equal, with tensors of the same names.
        tolerances: by part; None: those of the row's dtype.
    """
    tolerances = TOLERANCES[row.dtype] if tolerances is None else tolerances
    rows = []
    for part in ("output", "gradient"):
        ours, theirs = getattr(got, part), getattr(expected, part)
        if ours is None or theirs is None:
            continue
        absolute, relative, worst = distance(ours, theirs)
        results: dict[str, Any] = dict(absolute=absolute, relative=relative, tolerance=tolerances[part], worst=worst)
        rows.append(dataclasses.replace(row, part=part, **results))
    return rows


def distance(got: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[float, float, str]:
    """Returns (largest absolute, largest relative difference, the name of the tensor with the latter).

    Raises:
        ValueError: the two do not have tensors of the same names and shapes.
    """
    if got.keys() != expected.keys():
        raise ValueError(f"tensors differ: {sorted(got.keys() ^ expected.keys())}")
    theirs = {name: np.asarray(x, np.float64) for name, x in expected.items()}
    sizes = {name: float(np.abs(x).max(initial=0.0)) for name, x in theirs.items()}
    least = LEAST_SHARE * max(sizes.values())
    absolute, relative, worst = 0.0, -1.0, ""
    for name, right in theirs.items():
        ours = np.asarray(got[name], np.float64)
        if ours.shape != right.shape:
            raise ValueError(f"{name}: shapes differ, {ours.shape} and {right.shape}")
        off = float(np.abs(ours - right).max(initial=0.0))
        share = off / max(sizes[name], least) if off else 0.0
        # A NaN never compares as larger, so it is tested for.
        absolute = off if np.isnan(off) or off > absolute else absolute
        if np.isnan(share) or share > relative:
            relative, worst = share, name
        if np.isnan(share):
            break
    return absolute, relative, worst


def named(tree: Any) -> dict[str, jax.Array]:
    """Returns the leaves of nested dictionaries by dotted path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(str(part.key) for part in path): leaf for path, leaf in leaves}
