"""Teacher-forced scores: the loss and the argmax at every token, with memory bounded in the vocabulary."""

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
from configs.errors import UserError
from models import Transformer, axes
from models.decoding import decode
from models.positions import stretched
from training.step import mesh as meshes
from training.step.loss import token_losses

LOGITS = 2**24  # logits in memory at once (64 MB in float32); longer batches are scored in pieces along the row


@functools.lru_cache(maxsize=64)
def _graphdef(text: str) -> Any:
    model_config = validate.from_dict({"model": json.loads(text)}).model
    return nnx.split(nnx.eval_shape(lambda: Transformer(model_config, rngs=nnx.Rngs(0))))[0]


def graphdef(model_config: ConfigDict) -> Any:
    """Returns the NNX graph of a resolved config.model; any parameters of that shape can be merged into it."""
    return _graphdef(json.dumps(validate.to_dict(model_config), sort_keys=True))


class _Graph:
    """An NNX graph as a static argument whose hash is computed once, not at every call of a program."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._hash = hash(graph)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Graph) and (self.graph is other.graph or self.graph == other.graph)


class Prepared:
    """Everything scoring derives from a config.model, computed once per length and not for every batch.

    The config must not be changed afterwards.
    """

    def __init__(self, model_config: ConfigDict) -> None:
        self.vocab_size: int = model_config.vocab_size
        self.config = model_config
        self._known: dict[int | None, tuple[_Graph, stretched.Frequencies]] = {}

    def at(self, length: int | None) -> tuple[_Graph, stretched.Frequencies]:
        """Returns the graph and the RoPE scaling's numbers for rows of `length` (None: of documents in rows)."""
        if length not in self._known:
            config, frequencies = stretched.share(self.config, length)
            self._known[length] = _Graph(graphdef(config)), frequencies
        return self._known[length]


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


def function_key(model_config: ConfigDict, length: int) -> tuple[Any, ...]:
    """Returns a key that is equal for two models that compute the same function of rows of `length`."""
    config, frequencies = stretched.share(model_config, length)
    numbers = [(kind, *(number.tobytes() for number in result)) for kind, result in frequencies.items()]
    return (length, json.dumps(validate.to_dict(config), sort_keys=True), *numbers)


@functools.partial(jax.jit, static_argnames=("graph", "vocab_size", "rules"))
def _score(
    graph: _Graph, params: Any, batch: dict[str, Array], vocab_size: int, frequencies: Any, rules: axes.Rules | None
) -> tuple[Array, Array]:
    model = nnx.merge(graph.graph, params)
    stretched.apply(model, frequencies)
    with axes.following(rules):
        hidden_BTD = model.hidden(batch["tokens"], batch.get("positions"), batch.get("segments"))
        parts = axes.shards("length")
        if parts == 1:
            return token_scores(model, hidden_BTD, batch["targets"], vocab_size)
        # Each device computes the logits of its own part of the rows, in its own pieces.
        given = (x.reshape(x.shape[0], parts, -1, *x.shape[2:]) for x in (hidden_BTD, batch["targets"]))
        hidden, targets = (axes.constrain(x, "batch", "length", *[None] * (x.ndim - 2)) for x in given)
        by_part = jax.vmap(lambda h, t: token_scores(model, h, t, vocab_size), in_axes=1, out_axes=1)
        return jax.tree.map(lambda x: x.reshape(batch["targets"].shape), by_part(hidden, targets))


def token_scores(model: Transformer, hidden_BTD: Array, targets_BT: Array, vocab_size: int) -> tuple[Array, Array]:
    """Returns (losses float32 [B, T], argmax of the logits int32 [B, T]) of final hidden states, inside a jit."""
    rows, length = targets_BT.shape
    size = max(1, LOGITS // (rows * vocab_size))
    if size >= length:
        return _head(model, hidden_BTD, targets_BT)
    return _in_pieces(model, hidden_BTD, targets_BT, size)


def score(
    model: ConfigDict | Prepared, params: Any, batch: Mapping[str, np.ndarray], rules: axes.Rules | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores a batch.

    Args:
      model: resolved config.model; for many batches `Prepared` saves repeated work.
      params: parameters of that model.
      batch: tokens, targets int32 [B, T]; optionally positions, segments int32 [B, T].
      rules: sharding over a mesh; None: one device.

    Returns:
      (losses float32 [B, T] in nats, argmax of the logits int32 [B, T]).

    Raises:
      UserError: the devices along the rows do not divide them.
    """
    expected = {name: batch[name] for name in ("tokens", "targets", "positions", "segments") if name in batch}
    length = None if "segments" in expected else expected["tokens"].shape[1]
    prepared = model if isinstance(model, Prepared) else Prepared(model)
    graph, frequencies = prepared.at(length)
    parts = 1 if rules is None else rules.shards("length")
    if expected["tokens"].shape[1] % parts:
        raise UserError(
            f"mesh.context = {parts}: must divide every evaluated length, such as {expected['tokens'].shape[1]}"
        )
    laid = meshes.whole_batch(rules, expected)
    result = _score(graph, params, laid, prepared.vocab_size, frequencies, rules)
    return np.asarray(result[0]), np.asarray(result[1])


def answer(
    model_config: ConfigDict,
    params: Any,
    prompts_BT: np.ndarray,
    *,
    max_new: int,
    mask_BT: np.ndarray | None = None,
    **drawing: Any,
) -> np.ndarray:
    """Returns int32 [B, max_new], the continuation of each prompt through the KV cache.

    Args:
      model_config: resolved config.model.
      params: parameters of that model.
      prompts_BT: int32.
      max_new: tokens to generate.
      mask_BT: 1 for a token, 0 for padding on the left; None: no padding.
      drawing: temperature, top_p and key of `decode.generate`; without them the likeliest tokens.
    """
    # The length grows with the answer, so a scaling that depends on it keeps its own program.
    config, frequencies = stretched.share(model_config, None)
    result = decode.generate(
        graphdef(config), params, prompts_BT, max_new=max_new, mask_BT=mask_BT, frequencies=frequencies, **drawing
    )
    return np.asarray(result)
