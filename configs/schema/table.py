"""Groups of fields, and the whole schema as a table of dotted names."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Union

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs.schema.field import Field


class Group(dict[str, Union[Field, "Group"]]):
    """Fields and groups by name, in the order of config.json."""

    def of(self, **declared: Any) -> "Group":
        """Returns the group with `resume`, `program` or `compare` declared for every field that has none itself."""
        return Group(
            {
                name: node.of(**declared) if isinstance(node, Group) else node.within(**declared)
                for name, node in self.items()
            }
        )


def group(**members: Field | Group) -> Group:
    """Declares a group of fields."""
    return Group(members)


class Schema(Mapping[str, Field]):
    """Every field by its dotted name, in the order of config.json."""

    def __init__(self, root: Group) -> None:
        self.root = root
        self._fields: dict[str, Field] = {}

        def visit(node: Group, prefix: str) -> None:
            for name, member in node.items():
                if isinstance(member, Group):
                    visit(member, f"{prefix}{name}.")
                else:
                    self._fields[f"{prefix}{name}"] = member

        visit(root, "")

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def config(self) -> ConfigDict:
        """Returns a new config with every default; what is unset is a placeholder of its type."""

        def made(node: Group) -> ConfigDict:
            config = ConfigDict()
            for name, member in node.items():
                if isinstance(member, Group):
                    config[name] = made(member)
                else:
                    config[name] = placeholder(member.type) if member.optional else member.default
            return config

        return made(self.root)

    def adding(self, name: str, field: Field) -> "Schema":
        """Returns a copy with one more field at a dotted name, or with another declaration of it."""
        first, *rest = name.split(".")

        def copied(node: Group, first: str, rest: list[str]) -> Group:
            if not rest:
                return Group({**node, first: field})
            inner = node.get(first, Group())
            if not isinstance(inner, Group):
                raise ValueError(f"{name}: {first} is a field")
            return Group({**node, first: copied(inner, rest[0], rest[1:])})

        return Schema(copied(self.root, first, rest))

    @functools.cached_property
    def types(self) -> dict[str, type]:
        """The type of every field."""
        return {name: field.type for name, field in self.items()}

    @functools.cached_property
    def optional(self) -> frozenset[str]:
        """The fields that may be unset."""
        return frozenset(name for name, field in self.items() if field.optional)
