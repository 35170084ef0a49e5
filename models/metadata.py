"""The declarations that parameters carry (`models/declared`), read from a tree of them."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from models.declared.parameter import Parameter


def declared_of(variable: nnx.Variable) -> Parameter:
    """Returns a parameter's declaration.

    Raises:
        ValueError: it carries none, so nothing may be decided about it.
    """
    result = variable.get_metadata("declared", None)
    if not isinstance(result, Parameter):
        raise ValueError(f"a parameter of shape {variable.shape} carries no declaration (models/declared)")
    return result


def each(tree: Any, of: Callable[[Parameter], Any]) -> Any:
    """Returns a tree like `tree` (parameters, or their gradients or moments) with `of(declaration)` as every leaf.

    Raises:
        ValueError: a leaf belongs to no parameter with a declaration.
    """

    def leaves(node: Any) -> Any:
        if not isinstance(node, nnx.Variable):
            raise ValueError(f"{type(node).__name__} is no parameter: it carries no declaration (models/declared)")
        value = of(declared_of(node))
        return jax.tree.map(lambda _: value, node)

    return jax.tree.map(leaves, tree, is_leaf=lambda node: isinstance(node, nnx.Variable))
