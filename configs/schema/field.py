"""One field: everything that is said of it, in one place."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from configs.schema.allowed import LARGEST, Allowed

# The part of a field in compiled programs.
STATIC = "static"  # it shapes the program: another value is another program. A field that declares nothing is static
ARGUMENT = "argument"  # it is among the numbers that a program takes at each call
NONE = "none"  # no program depends on it but through the shapes of what it is called with

Resolver = Callable[[ConfigDict], Any]


@dataclass(frozen=True)
class Field:
    """A field of the schema.

    Attributes:
        default: None: unset.
        type: int, float, bool, str or tuple.
        meaning: its unit or meaning; of a field that may be unset, also what it resolves to.
        allowed: None: whatever the type allows (numbers must be finite).
        resolve: from a config whose earlier fields are resolved to the value. It is asked where the field is unset;
            of a field that cannot be unset it is asked always.
        resume: whether a resumed run may change it. Undeclared: it may not.
        program: STATIC, ARGUMENT or NONE. Undeclared: STATIC.
        pack: whether runs that train in one program may differ in it. Undeclared: they may not.
        compare: of a field of data or eval, the evaluations (by name) whose numbers it shapes; only theirs cannot be
            compared where it differs. Undeclared: it shapes all of them.
    """

    default: Any
    type: type
    meaning: str
    allowed: Allowed | None = None
    resolve: Resolver | None = None
    resume: bool | None = None
    program: str | None = None
    pack: bool = False
    compare: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.type not in (int, float, bool, str, tuple):
            raise TypeError(f"{self.type.__name__} is no type of a field")
        if not self.meaning:
            raise ValueError("a field needs a unit or a meaning")
        if self.program not in (None, STATIC, ARGUMENT, NONE):
            raise ValueError(f"program = {self.program!r}: must be {STATIC}, {ARGUMENT} or {NONE}")
        if self.default is not None and (wrong := self.problem("default", self.default)):
            raise ValueError(wrong)

    @property
    def static(self) -> bool:
        """Whether it shapes programs."""
        return self.program in (None, STATIC)

    @property
    def optional(self) -> bool:
        """Whether it may be unset."""
        return self.default is None

    def within(self, **group: Any) -> "Field":
        """Returns the field with what its group declares where it declares nothing itself."""
        left = {name: value for name, value in group.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **left)

    def problem(self, name: str, value: Any) -> str | None:
        """Returns what is wrong with a value of the field's type, in one line; None: it is allowed."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} = {value}: must be a finite number"
        if value is None:
            return None
        largest = LARGEST if self.allowed is None else self.allowed.largest
        if self.type is int and largest is not None and value > largest:
            return f"{name} = {value}: must be below 2**{largest.bit_length()}"
        return None if self.allowed is None else self.allowed.problem(name, value)


def field(default: Any, meaning: str, allowed: Allowed | None = None, **declared: Any) -> Field:
    """Declares a field with a default, which gives its type. `declared`: see `Field`."""
    return Field(default, type(default), meaning, allowed, **declared)


def unset(kind: type, meaning: str, allowed: Allowed | None = None, **declared: Any) -> Field:
    """Declares a field that is unset by default. `declared`: see `Field`."""
    return Field(None, kind, meaning, allowed, **declared)
