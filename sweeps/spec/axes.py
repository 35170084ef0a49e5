"""The grammar of a sweep's axes: what varies, and how variations combine.

An axis is a dictionary, one of

- `{"model.num_heads": [1, 2, 4]}`: a field and its values; a value that is not a list is one value; several fields in
  one dictionary are multiplied;
- `{"product": [AXIS, ...]}`: every choice of one axis with every choice of the others;
- `{"zip": [AXIS, ...]}`: the first choices together, the second choices together, ...; lengths must be equal;
- `{"chain": [AXIS, ...]}`: the choices of the first axis, then those of the second, ...
- `{"leave_one_out": [AXIS, ...]}`: the first choice of every axis together, then for each axis in turn its other
  choices with the first ones of the rest: all features, and each one taken away. `[{"model.attention.qk_norm":
  [True, False]}, {"model.mlp": ["swiglu", "gelu"]}]` is three arms; the first is the baseline unless another is named.

`where=` beside `axes` keeps the combinations that satisfy a condition: see sweeps/spec/where.py.

Each choice is an *assignment*, `{dotted field: value}`. Tuples are values (`(64, 0)` is one window pattern); lists and
ranges are lists of values.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs import fields
from configs.errors import ConfigError, nearest

Assignment = dict[str, Any]
COMBINATORS = ("product", "zip", "chain", "leave_one_out")
RESERVED = {"seed": "list seeds in `seeds`", "name": "name arms with `arm`"}
MOST_ARMS = 10_000


def values_of(value: Any) -> list[Any]:
    """Returns a leaf's values: those of a list or range, or the single value."""
    return list(value) if isinstance(value, list | range) else [value]


def check(axis: Any, where: str) -> list[str]:
    """Returns every problem of an axis (shape, fields, types, lengths), one per line.

    Args:
        axis: from the sweep file.
        where: its name in messages, such as `axes[0]`.
    """
    if not isinstance(axis, Mapping) or not axis:
        return [f"{where} = {axis!r}: must be a dictionary, a field with its values or one of {', '.join(COMBINATORS)}"]
    combinators = [key for key in axis if key in COMBINATORS]
    if not combinators:
        return [problem for field, value in axis.items() for problem in _check_leaf(field, value, where)]
    if len(axis) > 1:
        others = ", ".join(str(key) for key in axis if key != combinators[0])
        return [f"{where}: {combinators[0]!r} must be the only key of its dictionary, which also has {others}"]
    (kind,) = combinators
    children = axis[kind]
    if not isinstance(children, Sequence) or isinstance(children, str) or not children:
        return [f"{where}.{kind} = {children!r}: must be a list of axes"]
    problems = [p for i, child in enumerate(children) for p in check(child, f"{where}.{kind}[{i}]")]
    if problems:
        return problems
    if kind == "zip":
        lengths = [count(child) for child in children]
        if len(set(lengths)) > 1:
            names = ", ".join(f"{'/'.join(fields_of(c))} has {n}" for c, n in zip(children, lengths, strict=True))
            return [f"{where}.zip: its axes must be equally long, but {names}"]
    if kind == "leave_one_out":
        single = [i for i, child in enumerate(children) if count(child) < 2]
        problems += [f"{where}.{kind}[{i}]: has one choice; must have two, with and without" for i in single]
    if kind in ("product", "zip", "leave_one_out"):
        return problems + check_disjoint(children, f"{where}.{kind}")
    return []


def check_disjoint(axes: Sequence[Mapping[str, Any]], where: str) -> list[str]:
    """Returns a problem for each field that two of the axes set in one arm."""
    seen: set[str] = set()
    problems = []
    for axis in axes:
        names = set(fields_of(axis))
        problems += [f"{where}: two of its axes set {name}" for name in sorted(names & seen)]
        seen |= names
    return problems


def _check_leaf(field: Any, value: Any, where: str) -> list[str]:
    if field in RESERVED:
        return [f"{where}: {field} cannot be an axis; {RESERVED[field]}"]
    if field not in fields.types():
        return [f"{where}: {unknown_field(str(field))}"]
    given = values_of(value)
    if not given:
        return [f"{where}: {field} has no values"]
    problems = []
    for index, one in enumerate(given):
        problems += [f"{where}: {problem}" for problem in type_problems(field, one)]
        if one in given[:index]:
            problems.append(f"{where}: {field} lists {one!r} twice")
    return problems


def unknown_field(name: str) -> str:
    """Returns the message that refuses an unknown field, with the nearest known one."""
    kinds = fields.types()
    inside = dict.fromkeys(f[len(name) + 1 :].split(".")[0] for f in kinds if f.startswith(f"{name}."))
    if inside:
        return f"unknown field {name}: it is a group of fields: {', '.join(inside)}"
    return f"unknown field {name}{nearest(name, [*kinds, *COMBINATORS])}"


def type_problems(field: str, value: Any) -> list[str]:
    """Returns the type problems of one value of a known field."""
    try:
        fields.typed(field, value)
    except ConfigError as error:
        return error.problems
    return []


def fields_of(axis: Mapping[str, Any]) -> list[str]:
    """Returns the dotted fields that an axis sets, in order, each once."""
    if len(axis) == 1 and next(iter(axis)) in COMBINATORS:
        (children,) = axis.values()
        return list(dict.fromkeys(field for child in children for field in fields_of(child)))
    return list(axis)


def count(axis: Mapping[str, Any]) -> int:
    """Returns the number of assignments of an axis, without building them. The axis must be valid (see `check`)."""
    kind = next(iter(axis))
    if kind not in COMBINATORS:
        return _product(len(values_of(value)) for value in axis.values())
    counts = [count(child) for child in axis[kind]]
    if kind == "product":
        return _product(counts)
    if kind == "leave_one_out":
        return 1 + sum(number - 1 for number in counts)
    return counts[0] if kind == "zip" else sum(counts)


def _product(numbers: Iterator[int] | Sequence[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def assignments(axis: Mapping[str, Any]) -> list[Assignment]:
    """Returns an axis's assignments in file order. The axis must be valid (see `check`)."""
    kind = next(iter(axis))
    if kind not in COMBINATORS:
        choices = [[{field: value} for value in values_of(values)] for field, values in axis.items()]
        return [_merge(combination) for combination in itertools.product(*choices)]
    children = [assignments(child) for child in axis[kind]]
    if kind == "chain":
        return list(itertools.chain(*children))
    if kind == "leave_one_out":
        whole = _merge([child[0] for child in children])
        return [whole, *(whole | other for child in children for other in child[1:])]
    combinations = itertools.product(*children) if kind == "product" else zip(*children, strict=True)
    return [_merge(combination) for combination in combinations]


def _merge(parts: Sequence[Assignment]) -> Assignment:
    return {field: value for part in parts for field, value in part.items()}
