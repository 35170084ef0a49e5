"""The compared programs: a model's logits and gradients, and those of one attention layer."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from eval.equivalence.rows import Outcome, named
from eval.equivalence.setting import Setting
from models import initial
from training.step.loss import loss_sum

Batch = Mapping[str, Any]


def compiled(setting: Setting, model: ConfigDict | None = None) -> Any:
    """Returns a function of (params, batch) -> (logits [B, T, V], gradients), compiled for the batch's shapes.

    A batch has tokens, targets and weights, optionally positions and segments. The gradient is that of the mean loss.
    """
    graphdef = initial.abstract(setting.model if model is None else model)[0]

    def loss(params: Any, batch: Batch) -> Any:
        logits = nnx.merge(graphdef, params)(batch["tokens"], batch.get("positions"), batch.get("segments"))
        return loss_sum(logits, batch["targets"], batch["weights"])[0] / jnp.sum(batch["weights"]), logits

    gradient = jax.jit(jax.grad(loss, has_aux=True))

    def run(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        with setting.precise():
            gradients, logits = gradient(params, batch)
        return logits, gradients

    return run


def plain(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns a batch of whole rows, with the next token as each token's target."""
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "weights": np.ones(tokens.shape, np.float32),
    }


def outcome(setting: Setting, run: Any, batch: Batch, params: Any = None) -> Outcome:
    """Returns the outputs of a compiled program."""
    logits, gradients = run(setting.params if params is None else params, batch)
    return Outcome({"logits": logits}, named(nnx.to_pure_dict(gradients)))
