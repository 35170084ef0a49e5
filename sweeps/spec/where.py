"""`where=` of a sweep file: which combinations of the axes become arms.

    where="model.num_heads * model.head_dim <= model.width and model.position.kind != 'learned'"
    where=lambda c: c.model.num_heads * c.model.head_dim <= c.model.width

The condition sees an arm's config with `fixed`, the axes and the command line applied, before `derived` and before any
check, so that it can exclude what would be refused. As text it may contain names of fields; numbers, text in quotes,
True, False and None; tuples and lists; `and`, `or`, `not`; comparisons, `in`; `+ - * / // %`; brackets. Nothing else is
evaluated: no calls, no other names, no powers.
"""

import ast
import operator
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from configs import fields
from configs.errors import ConfigError
from sweeps.spec.axes import unknown_field

LONGEST = 2000  # characters of a condition
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def check(given: Any, where: str) -> list[str]:
    """Returns the problems of a sweep's `where`, one per line."""
    if given is None or callable(given):
        return []
    if not isinstance(given, str) or not given.strip() or len(given) > LONGEST:
        return [f"{where} = {given!r}: must be a condition as text, or a function of the arm's config"]
    try:
        tree = ast.parse(given.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"{where} = {given!r}: {getattr(error, 'msg', None) or error}"]
    return [f"{where} = {given!r}: {problem}" for problem in _problems(tree.body)]


def _problems(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant):
        return [] if isinstance(node.value, bool | int | float | str | None) else [f"{node.value!r} is not allowed"]
    if isinstance(node, ast.Attribute | ast.Name):
        name = _name(node)
        return [] if name in fields.types() else [unknown_field(name) if name else "only fields may have dots here"]
    parts: list[ast.AST]
    match node:
        case ast.BoolOp():
            parts = list(node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            parts = [node.operand]
        case ast.BinOp() if type(node.op) in _BINARY:
            parts = [node.left, node.right]
        case ast.Compare() if all(type(op) in _COMPARED for op in node.ops):
            parts = [node.left, *node.comparators]
        case ast.Tuple() | ast.List():
            parts = list(node.elts)
        case _:
            return [f"{ast.unparse(node)!r} is not allowed in a condition; use a function"]
    return [problem for part in parts for problem in _problems(part)]


def _name(node: ast.AST) -> str:
    """Returns the dotted name; empty if it starts with something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _name(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def keeps(given: Any, config: ConfigDict) -> bool:
    """Returns whether a checked condition holds for an arm's config.

    Raises:
        ConfigError: it fails, or returns something other than True or False.
    """
    if given is None:
        return True
    try:
        if callable(given):
            value = given(config)
        else:
            value = _value(ast.parse(given.strip(), mode="eval").body, fields.flatten(config))
    except Exception as error:
        raise ConfigError(f"where: {type(error).__name__}: {error}") from error
    if not isinstance(value, bool):
        raise ConfigError(f"where: returned {value!r}, must return True or False")
    return value


def _value(node: ast.AST, values: dict[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            return values[_name(node)]
        case ast.BoolOp():
            results = [_truth(_value(node.values[0], values))]
            for part in node.values[1:]:
                if results[-1] is not isinstance(node.op, ast.And):
                    break
                results.append(_truth(_value(part, values)))
            return results[-1]
        case ast.UnaryOp(op=ast.Not()):
            return not _truth(_value(node.operand, values))
        case ast.UnaryOp():
            return -_value(node.operand, values)
        case ast.BinOp():
            return _BINARY[type(node.op)](_value(node.left, values), _value(node.right, values))
        case ast.Compare():
            left = _value(node.left, values)
            for op, part in zip(node.ops, node.comparators, strict=True):
                right = _value(part, values)
                if not _COMPARED[type(op)](left, right):
                    return False
                left = right
            return True
        case ast.Tuple() | ast.List():
            return tuple(_value(part, values) for part in node.elts)
    raise ValueError(f"{ast.unparse(node)!r} is not allowed")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither True nor False")
    return value
