"""Teacher-forced scores of a model: the loss and the argmax at every token, with memory bounded in the vocabulary."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from ml_collections import ConfigDict

from configs import validate
from eval.variants import STRETCHED, kinds
from models import Transformer
from models.positions import build, with_scaling
from models.positions.rope import Rope
from training.loss import token_losses

LOGITS = 2**24  # logits held at once (64 MB in float32); longer batches are scored in pieces along the row


@functools.lru_cache(maxsize=64)
def _graphdef(text: str) -> Any:
    model_config = validate.from_dict({"model": json.loads(text)}).model
    return nnx.split(nnx.eval_shape(lambda: Transformer(model_config, rngs=nnx.Rngs(0))))[0]


def graphdef(model_config: ConfigDict) -> Any:
    """Returns the NNX graph of a resolved config.model; any parameters of that shape can be merged into it."""
    return _graphdef(json.dumps(validate.to_dict(model_config), sort_keys=True))


def _head(model: Transformer, hidden_BTD: Array, targets_BT: Array) -> tuple[Array, Array]:
    logits_BTV = model.logits(hidden_BTD)
    return token_losses(logits_BTV, targets_BT), jnp.argmax(logits_BTV, axis=-1).astype(jnp.int32)


def _in_pieces(model: Transformer, hidden_BTD: Array, targets_BT: Array, size: int) -> tuple[Array, Array]:
    batch, length = targets_BT.shape
    pieces = -(-length // size)
    padding = pieces * size - length
    hidden = jnp.pad(hidden_BTD, ((0, 0), (0, padding), (0, 0))).reshape(batch, pieces, size, -1).swapaxes(0, 1)
    targets = jnp.pad(targets_BT, ((0, 0), (0, padding))).reshape(batch, pieces, size).swapaxes(0, 1)
    losses, predictions = jax.lax.map(lambda piece: _head(model, *piece), (hidden, targets))
    return tuple(x.swapaxes(0, 1).reshape(batch, -1)[:, :length] for x in (losses, predictions))  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Given:
    """A RoPE scaling whose numbers are arguments of the program, so that one program serves every scaling."""

    inv_freq: Array  # [r/2]
    factor: Array  # scalar
    kind: str = "given"
    uses_lengths: bool = False

    def frequencies(self, theta: float, r: int, lengths: Array | None = None) -> tuple[Array, Array]:
        """Returns the inverse frequencies and the factor on cos and sin."""
        return self.inv_freq, self.factor


Frequencies = dict[str, tuple[np.ndarray, np.float32]]  # scheme -> (inverse frequencies [r/2], factor on cos and sin)


def shared(model_config: ConfigDict, length: int | None) -> tuple[ConfigDict, Frequencies]:
    """Returns a config that the model has in common with its other RoPE scalings, and what this one's numbers are.

    One program then serves all scalings of a length: compiling takes far longer than scoring a small model does.

    Args:
      model_config: resolved config.model.
      length: of every row, where rows hold one sequence each; None: rows hold several, and a scaling that depends on
        the sequence's length keeps its own program.
    """
    schemes = {kind: build(model_config, kind) for kind in kinds(model_config) if kind in STRETCHED}
    if not schemes or (length is None and any(scheme.uses_lengths for scheme in schemes.values())):
        return model_config, {}
    found = {}
    for kind, scheme in schemes.items():
        assert isinstance(scheme, Rope)
        inv_freq, factor = scheme.scaling.frequencies(scheme.theta, scheme.rotary_dim, jnp.full((1, 1), length or 0))
        found[kind] = np.asarray(inv_freq, np.float32).reshape(-1), np.float32(factor)
    return with_scaling(model_config, "none", original_length=1), found


def function_key(model_config: ConfigDict, length: int) -> tuple[Any, ...]:
    """Returns a key that is equal where two models compute the same function of rows of `length`."""
    config, frequencies = shared(model_config, length)
    numbers = [(kind, inv_freq.tobytes(), factor.tobytes()) for kind, (inv_freq, factor) in frequencies.items()]
    return (length, json.dumps(validate.to_dict(config), sort_keys=True), *numbers)


@functools.partial(jax.jit, static_argnames=("graph", "vocab_size"))
def _score(graph: Any, params: Any, batch: dict[str, Array], vocab_size: int, frequencies: Any) -> tuple[Array, Array]:
    model = nnx.merge(graph, params)
    for kind, numbers in frequencies.items():
        model.schemes[kind] = dataclasses.replace(model.schemes[kind], scaling=Given(*numbers))
    hidden_BTD = model.hidden(batch["tokens"], batch.get("positions"), batch.get("segments"))
    rows, length = batch["targets"].shape
    size = max(1, LOGITS // (rows * vocab_size))
    if size >= length:
        return _head(model, hidden_BTD, batch["targets"])
    return _in_pieces(model, hidden_BTD, batch["targets"], size)


def score(model_config: ConfigDict, params: Any, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Scores a batch.

    Args:
      model_config: resolved config.model.
      params: parameters of that model.
      batch: tokens, targets int32 [B, T]; maybe positions, segments int32 [B, T].

    Returns:
      (losses float32 [B, T] in nats, argmax of the logits int32 [B, T]).
    """
    wanted = {name: batch[name] for name in ("tokens", "targets", "positions", "segments") if name in batch}
    length = None if "segments" in wanted else wanted["tokens"].shape[1]
    config, frequencies = shared(model_config, length)
    found = _score(graphdef(config), params, wanted, model_config.vocab_size, frequencies)
    return np.asarray(found[0]), np.asarray(found[1])
