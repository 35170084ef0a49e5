"""Configs as flat tables of dotted fields: reading, writing, parsing from text, JSON and back."""

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import base
from configs.errors import ConfigError, nearest

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


@functools.cache
def types() -> dict[str, type]:
    """Returns {dotted name: type} of the whole schema; every call gives the same table, so do not change it."""
    return {name: kind for name, _, kind in walk(base.get_config())}


@functools.cache
def unset() -> frozenset[str]:
    """Returns the fields that may be unset: those that the schema leaves so."""
    return frozenset(name for name, value, _ in walk(base.get_config()) if value is None)


# The part a field has in compiled programs, by name or by group. What is not listed is static.
#   argument  a number that the program takes at each call
#   none      never read inside a program (shapes of batches are keys of their own)
PROGRAM: dict[str, str] = {
    **dict.fromkeys(("name", "seed", "tracker", "init_from"), "none"),
    **dict.fromkeys(("data", "budget", "checkpoint", "watch", "log", "eval"), "none"),
    "data.micro_batches": "static",
    **{f"optimizer.{name}": "argument" for name in ("learning_rate", "schedule", "warmup_steps")},
    **{f"optimizer.{name}": "argument" for name in ("decay_share", "final_share")},
}


def program_part(name: str) -> str:
    """Returns the part that a field has in compiled programs: static, argument or none."""
    for end in range(name.count(".") + 1):
        declared = PROGRAM.get(name.rsplit(".", end)[0])
        if declared is not None:
            return declared
    return "static"


def program_values(config: ConfigDict) -> dict[str, Any]:
    """Returns the static fields of a config, nested and fit for JSON: a program is built from these alone."""

    def static(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in node.items():
            if isinstance(value, Mapping):
                if inner := static(value, f"{prefix}{key}."):
                    kept[key] = inner
            elif program_part(f"{prefix}{key}") == "static":
                kept[key] = value
        return kept

    return static(to_dict(config), "")


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


def set_field(config: ConfigDict, name: str, value: Any) -> None:
    """Sets a dotted field in place; text is not parsed here (see `parse_text`).

    Raises:
        ConfigError: there is no such field, or the value has the wrong type.
    """
    kinds = types()
    if name not in kinds:
        inside = dict.fromkeys(f[len(name) + 1 :].split(".")[0] for f in kinds if f.startswith(f"{name}."))
        hint = f": it is a group of fields: {', '.join(inside)}" if inside else nearest(name, kinds)
        raise ConfigError(f"unknown field {name} (value {value!r}){hint}")
    kind = kinds[name]
    *parents, last = name.split(".")
    for parent in parents:
        config = config[parent]
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if isinstance(value, int) and value.bit_length() > BITS:
        raise ConfigError(f"{name}: must be {describe(kind)}, is one of {value.bit_length()} bits")
    exact = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    widened = kind is float and isinstance(value, int) and not isinstance(value, bool)
    optional = value is None and name in unset()
    if not (exact or widened or optional):
        raise ConfigError(f"{name} = {value!r}: must be {describe(kind)}")
    value = float(value) if widened else value
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
