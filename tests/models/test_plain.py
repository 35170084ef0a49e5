"""The model in plain JAX equals the real one in logits, loss and gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import base, validate
from models import initial, plain
from training.step.loss import loss_sum

HEADS = 4


def model_config(num_kv_heads: int, **changes: Any) -> Any:
    config = base.get_config()
    config.model.update({"vocab_size": 256, "width": 24, "num_layers": 3, "num_heads": HEADS, "head_dim": 10} | changes)
    config.model.num_kv_heads = num_kv_heads
    config.data.length = 12
    return validate.resolve(config).model


def by_path(state: Any) -> dict[str, Any]:
    return {".".join(map(str, path)): value[...] for path, value in nnx.to_flat_state(state)}


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_plain_equals_the_model(num_kv_heads: int) -> None:
    graph, state = initial.initialise(model_config(num_kv_heads), seed=1)
    draw = np.random.default_rng(0)
    # Norm scales begin at 1; moved, so that a forgotten one shows.
    state = jax.tree.map(lambda x: x + jnp.asarray(0.1 * draw.standard_normal(x.shape), jnp.float32), state)
    rows = jnp.asarray(draw.integers(0, 256, (2, 13)))
    tokens, targets = rows[:, :-1], rows[:, 1:]
    weights = jnp.asarray(draw.integers(0, 2, tokens.shape), jnp.float32)

    def real(state: Any) -> Any:
        logits = nnx.merge(graph, state)(tokens)
        return loss_sum(logits, targets, weights)[0] / weights.sum(), logits

    def read(parameters: plain.Parameters) -> Any:
        logits = plain.logits(parameters, tokens, HEADS, num_kv_heads)
        return plain.loss(parameters, tokens, targets, weights, HEADS, num_kv_heads), logits

    (loss, logits), gradients = jax.jit(jax.value_and_grad(real, has_aux=True))(state)
    both = jax.jit(jax.value_and_grad(read, has_aux=True))
    (plain_loss, plain_logits), plain_gradients = both(plain.read(by_path(state)))
    np.testing.assert_allclose(plain_logits, logits, atol=2e-5)
    np.testing.assert_allclose(plain_loss, loss, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), plain_gradients, plain.read(by_path(gradients))
    )


def test_another_model_is_refused() -> None:
    _, state = initial.initialise(model_config(2, tie_embeddings=False), seed=0)
    with pytest.raises(ValueError, match="head"):
        plain.read(by_path(state))
