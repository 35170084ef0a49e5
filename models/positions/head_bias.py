"""A bias written for one head: what a fused kernel computes itself, block by block, instead of reading an array."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

# name -> one number of a head, float32 [].
Scalars = dict[str, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class HeadBias:
    """A bias function (see `scheme.BiasFunction`) that also says how one head computes it from a few scalars.

    Without rows a head's bias is `function(scalars, q, k)`. With N rows it is the sum over n of
    `row({name: rows[name][n]}, function(scalars, q, k))`, which a kernel runs as a loop: a small network or a table.

    `function` and `row` are called inside a kernel. So they consist of elementwise operations, hold no arrays of their
    own, and q and k, int32 positions of queries and keys, broadcast against each other ([T, 1] with [1, S], or
    [1, T] with [S, 1]). Kernels differentiate them. Whatever is learned or differs by head is in `scalars` and `rows`.

    Attributes:
        function: (scalars, q, k) -> float32 [T, S], or [S, T] where q and k are given so.
        scalars: name -> float32 [H].
        rows: name -> float32 [N, H].
        row: (one row of `rows`, what `function` returns) -> float32 of the same shape.
        active: (one row, least and largest of what `function` returns in a block) -> whether the row adds anything but
            zeros there; None: always.
        constant: names in `scalars` and `rows` that get no gradient.
        whole: the function of (q_positions [B|1, T], kv_positions [B|1, S]) -> [B|1, H, T, S], where plain array
            operations do better than the definition by head; None: derived from it.
    """

    function: Callable[[Scalars, Array, Array], Array]
    scalars: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    row: Callable[[Scalars, Array], Array] | None = None
    active: Callable[[Scalars, Array, Array], Array] | None = None
    constant: frozenset[str] = frozenset()
    whole: Callable[[Array, Array], Array] | None = None

    def __call__(self, q_positions: Array, kv_positions: Array) -> Array:
        """Returns the bias [B|1, H, T, S] of all heads, for query positions [B|1, T] and key positions [B|1, S]."""
        if self.whole is not None:
            return self.whole(q_positions, kv_positions)

        def of_head(scalars: Scalars, rows: Scalars) -> Array:
            x = self.function(scalars, q_positions[:, :, None], kv_positions[:, None, :])
            if self.row is None:
                return x
            row = self.row
            return jax.lax.fori_loop(
                0, self.count, lambda n, total: total + row({k: v[n] for k, v in rows.items()}, x), jnp.zeros_like(x)
            )

        return jax.vmap(of_head, in_axes=(0, 1), out_axes=1)(dict(self.scalars), dict(self.rows))

    @property
    def count(self) -> int:
        """N, the number of rows."""
        return next(iter(self.rows.values())).shape[0] if self.rows else 0

    @property
    def num_heads(self) -> int:
        """H."""
        return next(iter({**self.scalars, **self.rows}.values())).shape[-1]

    def of_heads(self, first: Array | int, number: int) -> "HeadBias":
        """Returns the bias of `number` heads from `first` on."""
        whole = self.whole

        def cut(x: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, first, number, axis=x.ndim - 1)

        def some(q_positions: Array, kv_positions: Array) -> Array:
            assert whole is not None
            return jax.lax.dynamic_slice_in_dim(whole(q_positions, kv_positions), first, number, axis=1)

        return dataclasses.replace(
            self,
            scalars={name: cut(x) for name, x in self.scalars.items()},
            rows={name: cut(x) for name, x in self.rows.items()},
            whole=None if whole is None else some,
        )
