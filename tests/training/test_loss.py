"""Cross-entropy in blocks equals the plain one, in value and gradient, and keeps no logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base, validate
from configs.errors import ConfigError
from models.layers import soft_cap
from training.step import loss
from training.step import train_step as steps

B, T, D, V = 2, 7, 5, 11


def arrays(dtype=jnp.float32):
    draw = np.random.default_rng(0)
    hidden = jnp.asarray(draw.standard_normal((B, T, D)), dtype)
    table = jnp.asarray(2 * draw.standard_normal((D, V)), jnp.float32)
    targets = jnp.asarray(draw.integers(0, V, (B, T)))
    weights = jnp.asarray(draw.integers(0, 2, (B, T)), jnp.float32)
    return hidden, table, targets, weights


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_blocks_equal_the_whole(block, z_loss, cap):
    hidden, table, targets, weights = arrays()

    def plain(hidden, table):
        total, without = loss.loss_sum(soft_cap(hidden @ table, cap), targets, weights, z_loss)
        return 0.7 * total, without

    def blocked(hidden, table):
        options = dict(block=block, z_loss=z_loss, soft_cap=cap)
        total, without = loss.loss_sum_of_blocks(hidden, table, targets, weights, **options)
        return 0.7 * total, without

    (total, without), gradients = jax.value_and_grad(plain, (0, 1), has_aux=True)(hidden, table)
    (in_blocks, without_z), of_blocks = jax.value_and_grad(blocked, (0, 1), has_aux=True)(hidden, table)
    np.testing.assert_allclose(in_blocks, total, rtol=2e-6)
    np.testing.assert_allclose(without_z, without, rtol=2e-6)
    np.testing.assert_allclose(blocked(hidden, table)[0], total, rtol=2e-6)  # not differentiated: another path
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), of_blocks, gradients)


def test_gradients_in_bfloat16_are_as_near_to_float32_as_the_plain_ones():
    hidden, table, targets, weights = arrays(jnp.bfloat16)
    exact = jax.grad(lambda h, w: loss.loss_sum(h @ w, targets, weights)[0], (0, 1))(hidden.astype(jnp.float32), table)

    def plain(h, w):
        return loss.loss_sum(jnp.matmul(h, w.astype(h.dtype), preferred_element_type=jnp.float32), targets, weights)[0]

    def blocked(h, w):
        return loss.loss_sum_of_blocks(h, w, targets, weights, block=3)[0]

    def error(function):
        result = jax.grad(function, (0, 1))(hidden, table)
        return [float(jnp.abs(a.astype(jnp.float32) - b).max()) for a, b in zip(result, exact, strict=True)]

    for ours, theirs in zip(error(blocked), error(plain), strict=True):
        assert ours <= 1.5 * theirs + 1e-3


def test_a_batch_of_padding_has_neither_loss_nor_gradient():
    hidden, table, targets, _ = arrays()
    value, gradient = jax.value_and_grad(
        lambda h: loss.loss_sum_of_blocks(h, table, targets, jnp.zeros((B, T)), block=3, z_loss=0.1)[0]
    )(hidden)
    assert value == 0 and not np.any(gradient)


def config_of(**changes):
    config = base.get_config()
    config.model.update({"width": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 4096, "logit_soft_cap": 5.0})
    config.data.update({"length": 64, "batch_size": 4})
    config.update_from_flattened_dict(changes)
    return validate.resolve(config)


def lowered(config):
    return steps.lower(config).compile()


def test_the_step_keeps_the_logits_of_a_block_alone():
    whole, block = (lowered(config_of(**{"model.loss_block": n})).memory_analysis() for n in (0, 8))
    logits = 4 * 4 * 64 * 4096
    assert whole.temp_size_in_bytes > logits
    assert block.temp_size_in_bytes < 0.6 * logits


def test_auto_takes_blocks_where_logits_are_large_and_never_on_the_cpu(monkeypatch):
    config = config_of(**{"model.vocab_size": 50304}).model
    assert loss.block_of(config, 8, 2048) == 0
    monkeypatch.setattr(loss, "current", lambda: "gpu")
    assert loss.block_of(config, 8, 2048) == 128
    assert loss.block_of(config, 1, 64) == 0
    config.loss_block = 0
    assert loss.block_of(config, 8, 2048) == 0


def test_blocks_are_refused_where_devices_share_the_tokens_of_a_row():
    with pytest.raises(ConfigError, match=r"model\.loss_block = 8: must be 0 or unset where devices share"):
        config_of(**{"model.loss_block": 8, "mesh.context": 2})
