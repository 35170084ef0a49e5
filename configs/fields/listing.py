"""The fields as text: a table, and the names for a command's --help."""

import itertools
import textwrap

from configs import base
from configs.errors import UserError, nearest
from configs.fields import describe
from configs.schema import Field


def matching(prefix: str) -> list[str]:
    """Returns the fields of a group, or those whose names begin with a text.

    Raises:
        UserError: there are none.
    """
    names = list(base.SCHEMA)
    expected = prefix.rstrip(".")
    result = [name for name in names if name == expected or name.startswith(f"{expected}.")] if expected else names
    result = result or [name for name in names if name.startswith(prefix)]
    if not result:
        groups = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
        raise UserError(f"no field begins with {prefix!r}{nearest(prefix, [*sorted(groups), *names])}")
    return result


def table(prefix: str = "", width: int = 120) -> str:
    """Returns the fields that match a prefix as a table for a terminal of so many columns."""
    rows = [("field", "default", "allowed", "unit or meaning")]
    rows += [(name, *_cells(base.SCHEMA[name])) for name in matching(prefix)]
    sizes = [min(max(len(row[at]) for row in rows), most) for at, most in enumerate((56, 18, 30))]
    sizes.append(max(24, width - sum(sizes) - 6))
    lines = []
    for row in rows:
        parts = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        for cells in itertools.zip_longest(*parts, fillvalue=""):
            lines.append("  ".join(f"{cell:<{size}}" for cell, size in zip(cells, sizes, strict=True)).rstrip())
    return "\n".join(lines)


def _cells(field: Field) -> tuple[str, str, str]:
    default = "unset" if field.optional else repr(field.default).replace("'", '"')
    return default, describe(field.type) if field.allowed is None else _allowed(field), field.meaning


def _allowed(field: Field) -> str:
    assert field.allowed is not None
    words = f"each: {field.allowed.words}" if field.type is tuple else field.allowed.words
    return f"{describe(field.type)}, {words}" if field.type in (int, float) else words


def overview(prefix: str = "") -> str:
    """Returns the names of the fields that match a prefix, group by group, for the end of a command's --help."""
    groups: dict[str, list[str]] = {}
    for name in matching(prefix):
        group, _, last = name.rpartition(".")
        groups.setdefault(f"{group}." if group else "", []).append(last)
    lines = [
        f"--config.FIELD=VALUE changes a field; python -m configs.fields {prefix or '[PREFIX]'} says what each is:"
    ]
    for group, names in groups.items():
        lines += textwrap.wrap(
            f"{group} {', '.join(names)}".strip(), 116, initial_indent="  ", subsequent_indent="    "
        )
    return "\n".join(lines)
