"""Configs as flat tables of dotted fields: parsing from text, reading and writing, JSON and back."""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import base
from configs.errors import ConfigError, nearest
from configs.schema import Group

BITS = 1000  # of the largest whole number: larger ones are no float, and beyond 4300 digits no text
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def walk(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any, type]]:
    """Yields (dotted name, value, type) of every leaf; a placeholder's value is None and its type the declared one."""
    for key in config:
        value = config[key]
        if isinstance(value, ConfigDict):
            yield from walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value, config.get_type(key)


def flatten(config: ConfigDict) -> dict[str, Any]:
    """Returns {dotted name: value}."""
    return {name: value for name, value, _ in walk(config)}


def types() -> dict[str, type]:
    """Returns {dotted name: type} of the whole schema; every call gives the same table, so do not change it."""
    return base.SCHEMA.types


def unset() -> frozenset[str]:
    """Returns the fields that may be unset: those that the schema leaves so."""
    return base.SCHEMA.optional


def choices(name: str) -> tuple[str, ...]:
    """Returns the names that a field, or each item of a list, may be."""
    allowed = base.SCHEMA[name].allowed
    if allowed is None or not allowed.names:
        raise KeyError(f"{name} has no choices")
    return allowed.names


def resumable(name: str) -> bool:
    """Tells whether a resumed run may change a field."""
    return bool(base.SCHEMA[name].resume)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns the fields of two flat configs that differ and that a resumed run may not change."""
    return [name for name, field in base.SCHEMA.items() if not field.resume and before[name] != after[name]]


def program_values(config: ConfigDict, packed: bool = False) -> dict[str, Any]:
    """Returns the static fields of a config, nested and fit for JSON: a program is built from these alone.

    What the runs of a pack may differ in is an argument of a `packed` program, in which only whether it
    is 0 counts (0.0 or 1.0).
    """

    def static(node: Mapping[str, Any], group: Group) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, declared in group.items():
            if isinstance(declared, Group):
                if inner := static(node[key], declared):
                    kept[key] = inner
            elif declared.static:
                kept[key] = float(bool(node[key])) if packed and declared.pack else node[key]
        return kept

    return static(to_dict(config), base.SCHEMA.root)


def pack_values(config: ConfigDict) -> dict[str, Any]:
    """Returns what runs that train in one program must have in common; see `program_values`."""
    equal = {name: value for name, value in flatten(config).items() if not base.SCHEMA[name].pack}
    return {"fields": equal, "program": program_values(config, packed=True)}


def program_config(values: Mapping[str, Any]) -> ConfigDict:
    """Returns `program_values` as a config that has these fields alone; reading any other one raises."""

    def tuples(node: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tuples(value) if isinstance(value, Mapping) else _tuples(value) for key, value in node.items()}

    return ConfigDict(tuples(values))


def parse_text(name: str, text: str, kind: type) -> Any:
    """Reads a command line's text as a field's type.

    Raises:
        ConfigError: the text is no such value.
    """
    try:
        if text in ("None", "none") and name in unset():
            return None
        if not text and name in unset():  # a shell's variable that was not set, mostly
            raise ConfigError(f"{name} is empty: must be {describe(kind)}; None leaves it unset")
        if kind is bool:
            if text.lower() in TRUE:
                return True
            if text.lower() in FALSE:
                return False
            raise ValueError
        if kind is int:
            return int(text.replace("_", ""))
        if kind is float:
            return float(text)
        if kind is tuple:
            value = ast.literal_eval(text)
            return tuple(value) if isinstance(value, tuple | list) else (value,)
        return text
    except (ValueError, SyntaxError):
        raise ConfigError(f"{name} = {text!r}: must be {describe(kind)}") from None


def describe(kind: type) -> str:
    """Returns a type in words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", tuple: "a list such as (1, 2)"}
    return words.get(kind, "text")


def typed(name: str, value: Any) -> Any:
    """Returns a value as a dotted field holds it: a list as a tuple, a whole number of a float field as a float.

    Raises:
        ConfigError: there is no such field, or the value has the wrong type.
    """
    kinds = types()
    if name not in kinds:
        inside = dict.fromkeys(f[len(name) + 1 :].split(".")[0] for f in kinds if f.startswith(f"{name}."))
        hint = f": it is a group of fields: {', '.join(inside)}" if inside else nearest(name, kinds)
        raise ConfigError(f"unknown field {name} (value {value!r}){hint}")
    kind = kinds[name]
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if isinstance(value, int) and value.bit_length() > BITS:
        raise ConfigError(f"{name}: must be {describe(kind)}, is one of {value.bit_length()} bits")
    exact = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    widened = kind is float and isinstance(value, int) and not isinstance(value, bool)
    optional = value is None and name in unset()
    if not (exact or widened or optional):
        raise ConfigError(f"{name} = {value!r}: must be {describe(kind)}")
    return float(value) if widened else value


def set_field(config: ConfigDict, name: str, value: Any) -> None:
    """Sets a dotted field in place; text is not parsed here (see `parse_text`).

    Raises:
        ConfigError: there is no such field, or the value has the wrong type.
    """
    value = typed(name, value)
    *parents, last = name.split(".")
    for parent in parents:
        config = config[parent]
    try:
        config[last] = value
    except TypeError:  # a copy has no placeholders, and what was unset has no type; rare: this walks every string
        with config.ignore_type():
            config[last] = value


def to_dict(config: ConfigDict) -> dict[str, Any]:
    """Returns a config as plain nested dictionaries and lists, fit for JSON."""
    return json.loads(json.dumps(config.to_dict()))


def from_dict(values: Mapping[str, Any], source: str = "config") -> ConfigDict:
    """Returns a config from `to_dict`'s form; fields that are absent (an older file) take their defaults.

    Raises:
        ConfigError: an unknown field or a value of the wrong type, named together with `source`.
    """
    config = base.get_config()
    problems = []

    def visit(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                visit(value, f"{name}.")
                continue
            try:
                set_field(config, name, _tuples(value))
            except ConfigError as error:
                problems.append(f"{source}: {error}")

    visit(values, "")
    if problems:
        raise ConfigError(problems)
    return config


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
