"""The scalars of a bias by head, packed into one array that a kernel reads, and the bias and its gradient from them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.positions.head_bias import HeadBias, Scalars

LANES = 128  # a head's scalars are padded to a multiple of this, so that they make up whole tiles on a TPU

# Which of a head's scalars -> float32 [].
Read = Callable[[Any], Array]


def pack(bias: HeadBias) -> Array:
    """Returns float32 [H, N]: the scalars, then the rows name by name, padded with zeros."""
    parts = [x[:, None] for x in bias.scalars.values()] + [jnp.swapaxes(x, 0, 1) for x in bias.rows.values()]
    packed = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=1)
    return jnp.pad(packed, ((0, 0), (0, -packed.shape[1] % LANES)))


@dataclasses.dataclass(frozen=True)
class Layout:
    """A bias by head without its arrays: its functions, and where each number lies in a row of `pack`."""

    bias: HeadBias  # its arrays are not read
    names: tuple[str, ...]
    rows: tuple[str, ...]
    count: int  # rows

    @classmethod
    def of(cls, bias: HeadBias) -> "Layout":
        """Reads the layout of a bias."""
        functions = dataclasses.replace(bias, scalars={}, rows={}, whole=None)
        return cls(functions, tuple(bias.scalars), tuple(bias.rows), bias.count)

    @property
    def learned(self) -> bool:
        """Whether anything gets a gradient."""
        return not {*self.names, *self.rows} <= self.bias.constant

    def value(self, read: Read, q: Array, k: Array) -> Array:
        """Returns the bias of a block of one head, float32; q and k are positions that broadcast to its shape."""
        x = self.bias.function(self._scalars(read), q, k)
        row_of = self.bias.row
        if row_of is None:
            return x
        return self._over_rows(read, x, lambda row, n, total: total + row_of(row, x), jnp.zeros_like(x))

    def gradient(self, read: Read, q: Array, k: Array, d_bias: Array, total: Array) -> Array:
        """Returns `total` [1, N] plus the gradient of a head's scalars, given that of a block's bias."""
        scalars = self._scalars(read)
        learned, fixed = self._divided(scalars)
        x, pull = jax.vjp(lambda learned: self.bias.function({**fixed, **learned}, q, k), learned)
        row_of = self.bias.row
        if row_of is None:
            return self._added(total, pull(d_bias)[0], lambda name: self.names.index(name))

        def step(row: Scalars, n: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            total, d_x = carry
            own, rest = self._divided(row)
            _, pull = jax.vjp(lambda own, x: row_of({**rest, **own}, x), own, x)
            d_own, more = pull(d_bias)
            total = self._added(total, d_own, lambda name: self._place(name, n))
            return total, d_x + more if learned else d_x

        d_x = jnp.zeros_like(x) if learned else jnp.zeros((), x.dtype)
        total, d_x = self._over_rows(read, x, step, (total, d_x))
        return self._added(total, pull(d_x)[0], lambda name: self.names.index(name)) if learned else total

    def _over_rows(self, read: Read, x: Array, step: Callable[[Scalars, Array, Any], Any], carry: Any) -> Any:
        active = self.bias.active
        bounds = None if active is None else (jnp.min(x), jnp.max(x))

        def body(n: Array, carry: Any) -> Any:
            row = {name: read(self._place(name, n)) for name in self.rows}
            if active is None or bounds is None:
                return step(row, n, carry)
            return lax.cond(active(row, *bounds), lambda carry: step(row, n, carry), lambda carry: carry, carry)

        return lax.fori_loop(0, self.count, body, carry)

    def _scalars(self, read: Read) -> Scalars:
        return {name: read(index) for index, name in enumerate(self.names)}

    def _place(self, name: str, n: Any) -> Any:
        return len(self.names) + self.rows.index(name) * self.count + n

    def _divided(self, scalars: Scalars) -> tuple[Scalars, Scalars]:
        """Returns those that get a gradient, and the others."""
        fixed = {name: x for name, x in scalars.items() if name in self.bias.constant}
        return {name: x for name, x in scalars.items() if name not in fixed}, fixed

    def _added(self, total: Array, gradients: Scalars, place: Callable[[str], Any]) -> Array:
        lanes = lax.broadcasted_iota(jnp.int32, total.shape, 1)
        for name, gradient in gradients.items():
            total = total + jnp.where(lanes == place(name), gradient, 0.0)
        return total
