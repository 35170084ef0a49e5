"""The tested model: the config's, at the requested lengths, changed so that all of its features act there."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import fields
from configs.errors import ConfigError, UserError
from models import initial, kernels
from models.declared import positions
from models.layers import compute_dtype
from models.positions.rope_scaling import SCALINGS

FALLBACK_VOCABULARY = 256  # if only a tokenizer knows it: the values of tokens do not matter here


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model, its parameters and the tested shapes."""

    config: ConfigDict  # resolved; its model is tested
    params: Any
    batch: int
    length: int
    changed: dict[str, Any]  # fields that were reduced to act within `length`

    @property
    def model(self) -> ConfigDict:
        """The tested model, with an explicit dtype."""
        return self.config.model

    @property
    def dtype(self) -> str:
        """The compute dtype's name."""
        return self.model.dtype

    def having(self, **changes: Any) -> ConfigDict:
        """Returns the model with fields changed; dots are written `__`."""
        return changed(self.config, {f"model.{name.replace('__', '.')}": v for name, v in changes.items()}).model

    def tokens(self) -> np.ndarray:
        """Returns int32 [batch, length], the same at every call."""
        rng = np.random.default_rng(0)
        return rng.integers(0, self.model.vocab_size, (self.batch, self.length), dtype=np.int32)

    @contextlib.contextmanager
    def precise(self) -> Iterator[None]:
        """Computes float32 matmuls in float32: accelerators otherwise round their factors to 16 or 19 bits."""
        with jax.default_matmul_precision("highest") if self.dtype == "float32" else contextlib.nullcontext():
            yield


def changed(config: ConfigDict, changes: dict[str, Any]) -> ConfigDict:
    """Returns a copy of a config with dotted fields set."""
    config = fields.from_dict(fields.to_dict(config))
    for name, value in changes.items():
        fields.set_field(config, name, value)
    return config


def settings(config: ConfigDict, params: Any = None) -> list[Setting]:
    """Returns what to test: float32, which reveals a wrong sum sharply, and the compute dtype if it is different.

    Args:
        config: a resolved config; `eval.equivalence` sets the shapes.
        params: of the model; None: its initial ones, with constant ones perturbed so that they act.

    Raises:
        UserError: a length too small for the comparison.
    """
    requested = config.eval.equivalence
    batch, length = requested.batch_size or config.data.batch_size, requested.length or config.data.length
    smaller: dict[str, Any] = {}
    reach = positions.reach(config.model)
    if reach is not None and length > reach[0]:
        length = reach[0]
        smaller["eval.equivalence.length"] = length
    if length < 8:
        raise UserError(f"eval.equivalence.length = {length}: must be 8 or more")
    if requested.length:
        smaller |= within(config.model, length)
    if config.model.vocab_size is None:
        smaller["model.vocab_size"] = FALLBACK_VOCABULARY
    own = jnp.dtype(compute_dtype(config.model)).name
    tried = changed(config, {**smaller, "model.dropout": 0.0, "model.attention.kernel": "auto"})
    if params is None:
        params = acting(initial.initialise(tried.model, config.seed)[1])
    results = []
    for dtype in dict.fromkeys(("float32", own)):
        model = changed(tried, {"model.dtype": dtype, "model.attention.kernel": usable(config, dtype, length)})
        results.append(Setting(model, params, batch, length, smaller))
    return results


def within(model: ConfigDict, length: int) -> dict[str, Any]:
    """Returns smaller values for fields that would have no effect within `length`: windows and length thresholds."""
    attention, position = model.attention, model.position
    results: dict[str, Any] = {}
    quarter = max(1, length // 4)
    if attention.window is not None and attention.window >= length:
        results["model.attention.window"] = quarter
    if any(window >= length for window in attention.window_pattern):
        pattern = tuple(quarter if window >= length else window for window in attention.window_pattern)
        results["model.attention.window_pattern"] = pattern
    scaling = position.rope.scaling
    if SCALINGS[scaling.kind].uses_lengths and scaling.original_length >= length:
        results["model.position.rope.scaling.original_length"] = length // 2
    if position.temperature.kind != "none" and position.temperature.length >= length:
        results["model.position.temperature.length"] = max(2, quarter)
    return results


def acting(params: Any) -> Any:
    """Returns parameters with constant tensors (biases, norms, tables that start at zero) slightly perturbed."""

    def move(path: Any, leaf: jax.Array) -> jax.Array:
        x = np.asarray(leaf)
        if x.size > 1 and np.ptp(x) > 0:
            return leaf
        seed = sum(map(ord, jax.tree_util.keystr(path)))
        return jnp.asarray(x + 0.1 * np.random.default_rng(seed).standard_normal(x.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(move, params)


def usable(config: ConfigDict, dtype: str, length: int) -> str:
    """Returns the config's kernel, or auto if it cannot run here in this dtype; its own row has the reason."""
    model = changed(config, {"model.dtype": dtype}).model
    packed = config.data.packing == "segments"
    try:
        kernels.kernel_for(model, length=length, platform=jax.default_backend(), packed=packed)
    except ConfigError:
        return "auto"
    return model.attention.kernel
