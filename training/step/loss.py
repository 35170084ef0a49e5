"""Cross-entropy in float32, weighted by tokens."""

import jax
import jax.numpy as jnp
from jax import Array


def token_losses(logits_BTV: Array, targets_BT: Array) -> Array:
    """Returns the loss of every token in nats, float32 [B, T]: logsumexp(logits) - logits[target]."""
    logits_BTV = logits_BTV.astype(jnp.float32)
    picked_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - picked_BT


def loss_sum(logits_BTV: Array, targets_BT: Array, weights_BT: Array, z_loss: float = 0.0) -> tuple[Array, Array]:
    """Returns the weighted sum of token losses, with and without the z-loss (a scalar each, nats).

    The caller divides by the sum of weights of the *whole* batch, over micro-batches and devices: a mean of means
    would weigh a token by how many neighbours it has. The z-loss adds z_loss * log(Z)**2 a token (PaLM, section 5),
    which keeps the normaliser near 1.
    """
    logits_BTV = logits_BTV.astype(jnp.float32)
    picked_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    plain = jnp.sum((log_z_BT - picked_BT) * weights_BT)
    if not z_loss:
        return plain, plain
    return plain + z_loss * jnp.sum(jnp.square(log_z_BT) * weights_BT), plain
