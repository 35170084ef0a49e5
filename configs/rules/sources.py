"""The sources of text: their declarations, and which of them a config reads.

The sources themselves are in `data/sources/`; they are declared here because a config is checked before data is loaded.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ml_collections import ConfigDict

from configs.errors import nearest
from configs.schema.allowed import either

MIXTURE_FIELDS = ("path", "weight", "validation_path", "name")


@dataclass(frozen=True)
class Source:
    """The declaration of a source of text. A source is a file of `data/sources` and a line of SOURCES.

    Attributes:
        title: the origin of its text, for the list of fields.
        field: of config.data, which names the text. Setting it selects the source, and the source needs it. Empty: the
            source is selected by data.source alone and needs nothing.
        needs: the required value of `field`, for messages.
        tokens: its files may have token ids instead of text.
        problems: from config.data to the problems of the source's own fields, one per line.
    """

    title: str
    field: str = ""
    needs: str = ""
    tokens: bool = False
    problems: Callable[[ConfigDict], list[str]] = lambda data: []

    def value(self, data: ConfigDict) -> Any:
        """Returns the value of `field`; None for a source without one."""
        return reduce(lambda group, name: group[name], self.field.split("."), data) if self.field else None


def mixture_names(mixture: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the name of each text of a mixture: the given one, or its path."""
    return [str(one.get("name") or one["path"]) for one in mixture]


def mixture_problems(data: ConfigDict) -> list[str]:
    """Returns every problem of a mixture, one per line."""
    results, names = list[str](), list[str]()
    for index, one in enumerate(data.mixture):
        where = f"data.mixture[{index}]"
        if not isinstance(one, Mapping):
            results.append(f"{where} = {one!r}: must be dict(path=, weight=), and may have validation_path= and name=")
            continue
        for key, value in one.items():
            if key not in MIXTURE_FIELDS:
                results.append(f"{where}.{key} = {value!r}: unknown{nearest(key, MIXTURE_FIELDS)}")
            elif key != "weight" and not (isinstance(value, str) and (value or key != "path")):
                results.append(
                    f"{where}.{key} = {value!r}: must be text{', a file or a glob' if 'path' in key else ''}"
                )
        if "path" not in one:
            results.append(f"{where}.path: is missing; a text of a mixture needs path and weight")
        weight = one.get("weight")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            shown = "is missing; it" if "weight" not in one else f"= {weight!r}:"
            results.append(f"{where}.weight {shown} must be a number above 0")
        if isinstance(one.get("path"), str):
            names += mixture_names([one])
    for name in sorted({name for name in names if names.count(name) > 1}):
        results.append(f"data.mixture: two of its texts are named {name!r}; give each its own name (name=)")
    if data.mixture and data.validation_path:
        results.append(_another("validation_path", data.validation_path, "mixture"))
    return results


def _another(field: str, value: Any, selecting: str) -> str:
    return f"data.{field} = {value!r}: data.{selecting} is also set; set only one of them"


SOURCES: dict[str, Source] = {
    "stdlib": Source("built in"),
    "files": Source("data.path", "path", "a file or a glob", tokens=True),
    "tfds": Source("data.tfds", "tfds.name", "a data set's name"),
    "mixture": Source("data.mixture", "mixture", "its texts", tokens=True, problems=mixture_problems),
}
MEANING = f"text: {either(f'{name} ({one.title})' for name, one in SOURCES.items())}"


def source(data: ConfigDict) -> str:
    """Returns the source that config.data reads: the one selected by a field, else data.source."""
    return next((name for name in reversed(SOURCES) if SOURCES[name].value(data)), data.source)


def problems(data: ConfigDict) -> list[str]:
    """Returns the problems of the choice of a source and of the sources' own fields, one per line."""
    chosen, result = source(data), []
    declared = SOURCES[chosen]
    for name, one in SOURCES.items():
        if name != chosen and one.value(data):
            result.append(_another(one.field, one.value(data), declared.field))
    if declared.field and not declared.value(data):
        empty = declared.value(data)
        result.append(f"data.{declared.field} = {empty!r}: data.source = {chosen!r} needs {declared.needs}")
    for one in SOURCES.values():
        result += one.problems(data)
    if not declared.tokens:
        if data.tokenizer == "none":
            result.append("data.tokenizer = 'none': text needs one")
        for field in ("vocab_size", "separator"):
            if data[field] is not None:
                result.append(f"data.{field} = {data[field]}: applies to token files only, and this run reads {chosen}")
    return result
