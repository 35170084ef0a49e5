"""A bias function called on blocks inside a custom derivative, with gradients to the arrays it closes over."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from models.positions.scheme import BiasFunction

# The shapes of (query positions, key positions) of a block.
Form = tuple[tuple[int, ...], tuple[int, ...]]
Constants = tuple[Array, ...]


class BiasBlocks:
    """A bias function with everything it closes over pulled out as `constants`.

    A custom derivative must take what it differentiates as arguments. The arrays in a closure (the bias's own
    parameters) are found by tracing the function.
    """

    def __init__(self, function: BiasFunction, form: Form) -> None:
        shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in form]
        # A new function each time: tracing is cached by function, and a closure's arrays change between calls.
        closed = jax.make_jaxpr(lambda q, kv: function(q, kv))(*shapes)
        self._jaxpr = closed.jaxpr
        self.constants: Constants = tuple(closed.consts)

    def __call__(self, constants: Constants, q_places: Array, kv_places: Array) -> Array:
        """Returns the bias [B|1, H, T', S'] of a block, from constants like `self.constants`."""
        (out,) = jax.core.eval_jaxpr(self._jaxpr, constants, q_places, kv_places)
        return out

    def gradient(self, constants: Constants, q_places: Array, kv_places: Array, d_bias: Array) -> list[Array]:
        """Returns the gradients of the floating constants, given the bias's [B, H, T', S']."""

        def bias(floats: Sequence[Array]) -> Array:
            rest = iter(floats)
            return self(tuple(next(rest) if _is_float(x) else x for x in constants), q_places, kv_places)

        out, pull = jax.vjp(bias, [x for x in constants if _is_float(x)])
        if out.shape[0] == 1:
            d_bias = jnp.sum(d_bias, axis=0, keepdims=True)
        return pull(d_bias.astype(out.dtype))[0]

    def zeros(self, constants: Constants) -> list[Array]:
        """Returns gradients of the floating constants to add to."""
        return [jnp.zeros_like(x) for x in constants if _is_float(x)]

    def cotangents(self, constants: Constants, gradients: Sequence[Array]) -> tuple[Array | None, ...]:
        """Returns a gradient for each constant, None if it is not floating."""
        rest = iter(gradients)
        return tuple(next(rest) if _is_float(x) else None for x in constants)


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)
