"""A learned table of positions added to the embedding (GPT-2)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs.errors import ConfigError
from models.positions.layered import parameters
from models.positions.scheme import Scheme


class Learned(Scheme, nnx.Module):
    """x + table[p], one row of width D for each position below `max_length`."""

    places: ClassVar[frozenset[str]] = frozenset({"embed"})

    def __init__(self, parameters: dict[str, nnx.Param], *, max_length: int) -> None:
        self.max_length = max_length
        self.table = parameters["table"]

    def embed(self, x_BTD: Array, positions: Array | None = None) -> Array:
        """Returns x [B, T, D] plus the rows of `positions`.

        Rows the table does not have are never made up: known positions are refused, traced ones give rows of NaN.

        Raises:
            ConfigError: a position is beyond the table and its value is known (positions None or a concrete array).
        """
        table = self.table[...]
        if positions is None:
            self.check(x_BTD.shape[-2])
            return x_BTD + table[: x_BTD.shape[-2]].astype(x_BTD.dtype)
        if not isinstance(positions, jax.core.Tracer):
            self.check(int(np.max(np.asarray(positions), initial=-1)) + 1)
        # A negative index would count from the table's end.
        rows = jnp.where(positions < 0, self.max_length, positions)
        return x_BTD + jnp.take(table, rows, axis=0, mode="fill", fill_value=jnp.nan).astype(x_BTD.dtype)

    def check(self, length: int) -> None:
        """Refuses a length above the table's.

        Raises:
            ConfigError: `length` positions are more than the rows.
        """
        if length > self.max_length:
            raise ConfigError(
                f"length {length}: the learned positions have {self.max_length} rows (model.position.max_length)"
            )


def build(config: ConfigDict, rngs: nnx.Rngs | None) -> Learned:
    """Builds the table from config.model; `init_std` unset means 1/sqrt(width)."""
    return Learned(parameters(config, "learned", rngs), max_length=config.position.max_length)
