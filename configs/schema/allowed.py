"""What is allowed of one field: choices, ranges, items of a list. Each says it in words and answers a wrong value."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from configs.errors import nearest

LARGEST = 2**31 - 1  # of whole numbers, where nothing else is said: arrays are indexed by int32


@dataclass(frozen=True)
class Allowed:
    """What a field may be.

    Attributes:
        words: what is allowed, as it reads after "must be".
        test: whether a value is allowed.
        names: the choices, of a field that has them; the nearest one is suggested.
        items: the types that each item of a list may have; None: the rule is about the value as a whole.
        largest: no whole number is above it; None: the test says it.
    """

    words: str
    test: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    items: tuple[type, ...] | None = None
    largest: int | None = LARGEST

    def problem(self, name: str, value: Any) -> str | None:
        """Returns what is wrong with a value that is set, in one line; None: it is allowed."""
        if self.items is not None:
            wrong = [item for item in value if not (self._item(item) and self.test(item))]
            return f"{name} = {value!r}: {wrong[0]!r} is not allowed; each must be {self.words}" if wrong else None
        if self.test(value):
            return None
        return f"{name} = {value!r}: must be {self.words}{nearest(value, self.names) if self.names else ''}"

    def _item(self, item: Any) -> bool:
        return isinstance(item, self.items or ()) and not isinstance(item, bool)


def either(names: Iterable[str], word: str = "or") -> str:
    """Returns names as words: a, b or c."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def choice(*names: str) -> Allowed:
    """Allows one of these names."""
    return Allowed(either(names), lambda value: value in names, names)


def rule(words: str, test: Callable[[Any], bool], largest: int | None = LARGEST) -> Allowed:
    """Allows what passes a test; `words` say it."""
    return Allowed(words, test, largest=largest)


def above(limit: float) -> Allowed:
    """Allows numbers above a limit."""
    return rule(f"above {limit:g}", lambda value: value > limit)


def at_least(limit: float) -> Allowed:
    """Allows a limit and numbers above it."""
    return rule(f"{limit:g} or more", lambda value: value >= limit)


def interval(text: str, note: str = "") -> Allowed:
    """Allows numbers of an interval as mathematics writes it, "[0, 1)"; `note` is added to the words."""
    result = re.fullmatch(r"([\[(])(\S+), (\S+)([\])])", text)
    if result is None:
        raise ValueError(f"{text!r} is no interval")
    low, high = float(result[2]), float(result[3])
    closed = result[1] == "[", result[4] == "]"

    def test(value: float) -> bool:
        return (value >= low if closed[0] else value > low) and (value <= high if closed[1] else value < high)

    return rule(f"in {text}{note}", test)


def each(
    what: str | Iterable[str], kind: type | tuple[type, ...] = str, test: Callable[[Any], bool] | None = None
) -> Allowed:
    """Allows lists whose items have a type and pass a test; `what` says it, or gives the names that are allowed."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(what, str):
        return Allowed(what, test or (lambda _: True), items=kinds)
    names = tuple(what)
    return Allowed(either(names), lambda item: item in names, names, items=kinds)
