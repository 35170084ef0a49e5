"""A bias function called on blocks inside a custom derivative, with gradients to the arrays it closes over."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from models.positions.scheme import BiasFunction

# The shapes of (query positions, key positions), which a block's bias is traced for.
Form = tuple[tuple[int, ...], tuple[int, ...]]
Constants = tuple[tuple[Array, ...], ...]


class BiasBlocks:
    """A bias function with everything it closes over pulled out as `constants`, a tuple for each form of block.

    A custom derivative must take what it differentiates as arguments. The arrays in a closure (the bias's own
    parameters) are found by tracing the function. The same array may stand in several tuples: its gradient is then
    the sum of theirs, which JAX takes by itself.
    """

    def __init__(self, function: BiasFunction, forms: Iterable[Form]) -> None:
        self._traced = {}
        constants: list[tuple[Array, ...]] = []
        for form in dict.fromkeys(forms):
            shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in form]
            # A new function each time: tracing is cached by function, and a closure's arrays change between calls.
            closed = jax.make_jaxpr(lambda q, kv: function(q, kv))(*shapes)
            self._traced[form] = (len(constants), closed.jaxpr)
            constants.append(tuple(closed.consts))
        self.constants: Constants = tuple(constants)

    def __call__(self, constants: Constants, q_places: Array, kv_places: Array) -> Array:
        """Returns the bias [B|1, H, T', S'] of a block, from constants like `self.constants`."""
        index, jaxpr = self._traced[q_places.shape, kv_places.shape]
        (out,) = jax.core.eval_jaxpr(jaxpr, constants[index], q_places, kv_places)
        return out

    def gradient(self, constants: Constants, q_places: Array, kv_places: Array, d_bias: Array) -> list[Array]:
        """Returns the gradients of the floating constants, given the bias's [B, H, T', S']."""
        leaves = jax.tree.leaves(constants)

        def bias(floats: Sequence[Array]) -> Array:
            rest = iter(floats)
            joined = [next(rest) if _is_float(leaf) else leaf for leaf in leaves]
            return self(jax.tree.unflatten(jax.tree.structure(constants), joined), q_places, kv_places)

        out, pull = jax.vjp(bias, [leaf for leaf in leaves if _is_float(leaf)])
        if out.shape[0] == 1:
            d_bias = jnp.sum(d_bias, axis=0, keepdims=True)
        return pull(d_bias.astype(out.dtype))[0]

    def zeros(self, constants: Constants) -> list[Array]:
        """Returns gradients of the floating constants to add to."""
        return [jnp.zeros_like(leaf) for leaf in jax.tree.leaves(constants) if _is_float(leaf)]

    def cotangents(self, constants: Constants, gradients: Sequence[Array]) -> tuple[tuple[Array | None, ...], ...]:
        """Returns gradients in the structure of the constants, None where a constant is not floating."""
        rest = iter(gradients)
        return tuple(tuple(next(rest) if _is_float(leaf) else None for leaf in leaves) for leaves in constants)


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)
