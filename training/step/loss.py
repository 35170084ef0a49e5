"""Cross-entropy in float32, weighted by tokens; with a large vocabulary in blocks, so that no logits are kept."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from models import axes
from models.platform import current

# Bytes of float32 logits up to which all are computed at once, and bytes of a block's; minimum tokens of a row.
WHOLE, PART, LEAST = 2**28, 2**28, 16


def token_losses(logits_BTV: Array, targets_BT: Array) -> Array:
    """Returns the loss of every token in nats, float32 [B, T]: logsumexp(logits) - logits[target]."""
    logits_BTV = logits_BTV.astype(jnp.float32)
    picked_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - picked_BT


def loss_sum(logits_BTV: Array, targets_BT: Array, weights_BT: Array, z_loss: float = 0.0) -> tuple[Array, Array]:
    """Returns the weighted sum of token losses, with and without the z-loss (a scalar each, nats).

    The caller divides by the sum of weights of the *whole* batch, over micro-batches and devices: a mean of means would
    weight a token by the number of its neighbours. The z-loss adds z_loss * log(Z)**2 per token (PaLM, section 5),
    which keeps the normalizer near 1.
    """
    logits_BTV = logits_BTV.astype(jnp.float32)
    picked_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    plain = jnp.sum((log_z_BT - picked_BT) * weights_BT)
    if not z_loss:
        return plain, plain
    return plain + z_loss * jnp.sum(jnp.square(log_z_BT) * weights_BT), plain


def loss_sum_of_blocks(
    hidden_BTD: Array,
    table_DV: Array,
    targets_BT: Array,
    weights_BT: Array,
    *,
    block: int,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
) -> tuple[Array, Array]:
    """Returns `loss_sum` of logits = cap(hidden @ table), with the logits of only `block` tokens per row at a time.

    The gradient is computed together with the loss, block by block: d logits are known as soon as logits are, so no
    logit is kept and none is computed twice. The second value, without the z-loss, has no gradient.

    Args:
        hidden_BTD: final hidden states, in the compute dtype.
        table_DV: the output matrix, float32; its matmuls are in the dtype of the hidden states.
        targets_BT: int32.
        weights_BT: float32, 0 for padding.
        block: tokens of each row; the last block may be shorter.
        z_loss: see `loss_sum`.
        soft_cap: logits become cap * tanh(logits / cap); None: none.
    """
    return _of_blocks(block, z_loss, soft_cap)(hidden_BTD, table_DV, targets_BT, weights_BT)


def block_of(config: ConfigDict, rows: int, length: int) -> int:
    """Returns how many tokens of each row have logits at once, 0 for all, from `config.loss_block`.

    Unset, it is 0 on the CPU and if the float32 logits of all tokens take at most WHOLE bytes; elsewhere the largest
    power of two whose logits take at most PART. If devices share the tokens of a row it is 0.

    Args:
        config: a resolved config.model.
        rows: of a (micro-)batch.
        length: tokens of each.
    """
    if config.loss_block is not None:
        return 0 if config.loss_block >= length else config.loss_block
    token = 4 * rows * config.vocab_size
    if current() == "cpu" or axes.shards("length") > 1 or token * length <= WHOLE:
        return 0
    return max(LEAST, 2 ** int(math.log2(PART / token))) if token * LEAST < PART else LEAST


def _block_loss(
    x_BtD: Array, table_DV: Array, targets: Array, weights: Array, z_loss: float, cap: float | None
) -> tuple[Array, Array, Array]:
    """Returns (loss, loss without the z-loss, d loss / d raw logits [B, t, V]) of one block."""
    logits = jnp.matmul(x_BtD, table_DV, preferred_element_type=jnp.float32)
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    plain = jnp.sum((log_z - picked) * weights)
    total = plain + z_loss * jnp.sum(jnp.square(log_z) * weights) if z_loss else plain
    share = weights * (1 + 2 * z_loss * log_z) if z_loss else weights
    ours = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == targets[..., None]
    d_logits = jnp.exp(logits - log_z[..., None]) * share[..., None] - jnp.where(ours, weights[..., None], 0.0)
    if cap is not None:
        d_logits = d_logits * (1 - jnp.square(logits / cap))
    return total, plain, d_logits


@functools.lru_cache(maxsize=16)
def _of_blocks(block: int, z_loss: float, cap: float | None) -> Any:
    def blocks(*arrays: Array) -> list[tuple[Array, ...]]:
        """Returns [B, T, ...] arrays split along T: whole blocks stacked [n, B, t, ...], then the remainder."""
        length = arrays[0].shape[1]
        whole, size = length // block, min(block, length)

        def stacked(x: Array) -> Array:
            return jnp.moveaxis(x[:, : whole * size].reshape(x.shape[0], whole, size, *x.shape[2:]), 1, 0)

        cuts = [tuple(map(stacked, arrays))] if whole else []
        if length - whole * size:
            cuts.append(tuple(x[None, :, whole * size :] for x in arrays))
        return cuts

    def joined(parts: list[Array]) -> Array:
        return jnp.concatenate([jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]) for x in parts], axis=1)

    @jax.custom_vjp
    def of(hidden: Array, table: Array, targets: Array, weights: Array) -> tuple[Array, Array]:
        table = table.astype(hidden.dtype)

        def add(carry: tuple[Array, Array], part: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
            total, plain, _ = _block_loss(part[0], table, part[1], part[2], z_loss, cap)
            return (carry[0] + total, carry[1] + plain), None

        sums = (jnp.zeros(()), jnp.zeros(()))
        for cut in blocks(hidden, targets, weights):
            sums, _ = jax.lax.scan(add, sums, cut)
        return sums

    def forward(hidden: Array, table: Array, targets: Array, weights: Array) -> tuple[Any, Any]:
        narrow = table.astype(hidden.dtype)

        def add(carry: Any, part: tuple[Array, ...]) -> tuple[Any, Array]:
            total, plain, d_logits = _block_loss(part[0], narrow, part[1], part[2], z_loss, cap)
            d_logits = d_logits.astype(narrow.dtype)
            d_x = jnp.einsum("btv,dv->btd", d_logits, narrow)
            d_table = jnp.einsum("btd,btv->dv", part[0], d_logits, preferred_element_type=jnp.float32)
            return (carry[0] + total, carry[1] + plain, carry[2] + d_table), d_x

        carry = (jnp.zeros(()), jnp.zeros(()), jnp.zeros(table.shape, jnp.float32))
        d_hidden = []
        for cut in blocks(hidden, targets, weights):
            carry, d_x = jax.lax.scan(add, carry, cut)
            d_hidden.append(d_x)
        total, plain, d_table = carry
        return (total, plain), (joined(d_hidden), d_table)

    def backward(saved: tuple[Array, Array], cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
        d_hidden, d_table = saved
        d_total = cotangents[0]
        return d_hidden * d_total.astype(d_hidden.dtype), d_table * d_total, None, None

    of.defvjp(forward, backward)
    return of
