"""CoPE: positions counted in what the context deems worth counting (Golovneva et al., arXiv 2405.18719)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from ml_collections import ConfigDict

from models.positions.layered import parameters
from models.positions.scheme import Scheme, ScoresFunction


class Cope(Scheme, nnx.Module):
    """Adds q_i . e[p_ij] to the scores s_ij, where p_ij = sum of sigmoid(s_ik) over the visible keys k = j .. i.

    p is clipped to the last of the table's rows, and q.e is interpolated between whole p. The table e [rows, K] is
    each layer's own and shared by its heads; it starts at zero, as in the authors' code. s is what the softmax would
    see without this: scaled by `attention.scale`, capped where there is a cap; q.e is not scaled, as in the paper's
    listing (the authors' repository also scales it unless told not to). The sum runs in the order of positions and
    in float32, over the window if there is one. Needs all scores of a query at once, so the `reference` kernel.
    """

    places: ClassVar[frozenset[str]] = frozenset({"scores"})

    def __init__(self, parameters: dict[str, nnx.Param]) -> None:
        self.table = parameters["table"]

    def scores(self) -> ScoresFunction:
        """Returns the function that is added to the scores (see `ScoresFunction`)."""
        table_PK = self.table[...]

        def added(q_BTHK: Array, scores_BHTS: Array, visible: Array | None, kv_positions: Array | None) -> Array:
            gates = jax.nn.sigmoid(scores_BHTS)
            if visible is not None:
                gates = jnp.where(visible[:, None], gates, 0)
            count = _sum_from(gates, kv_positions)
            count = jnp.minimum(count, table_PK.shape[0] - 1)
            precise = lax.Precision.HIGHEST
            at_whole = jnp.einsum("bthk,pk->bhtp", q_BTHK.astype(table_PK.dtype), table_PK, precision=precise)
            low = jnp.floor(count)
            below, above = (
                jnp.take_along_axis(at_whole, whole.astype(jnp.int32), axis=-1, mode="promise_in_bounds")
                for whole in (low, jnp.ceil(count))
            )
            share = count - lax.stop_gradient(low)
            return below * (1 - share) + above * share

        return added


def _sum_from(gates_BHTS: Array, kv_positions: Array | None) -> Array:
    """Returns for each key the sum of its gate and those of keys at later positions (None: later in the row)."""
    if kv_positions is None:
        return lax.cumsum(gates_BHTS, axis=3, reverse=True)
    # Slots of a rolling cache are out of order; keys of other documents have gates of 0.
    order = jnp.argsort(kv_positions, axis=-1)
    back = jnp.argsort(order, axis=-1)

    def along(x: Array, index: Array) -> Array:
        return jnp.take_along_axis(x, jnp.broadcast_to(index[:, None, None], x.shape), axis=-1)

    return along(lax.cumsum(along(gates_BHTS, order), axis=3, reverse=True), back)


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Cope:
    """Builds CoPE's tables for those layers of config.model that have it."""
    return Cope(parameters(config, "cope", rngs))
