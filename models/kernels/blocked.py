"""Attention in blocks, pure JAX: memory linear in length, hidden blocks skipped, a backward pass of its own.

As in FlashAttention-2 (Dao, arXiv 2307.08691): the forward pass keeps the output and the logsumexp of each row; the
backward pass computes the weights again, block by block.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from models.kernels import passes
from models.kernels.bias_blocks import BiasBlocks, Constants
from models.kernels.block import MOST_UNROLLED, SAVED, Job, Places, blocks, gather_places
from models.kernels.kernel import Kernel, Scoring
from models.kernels.masks import Masking


def blocked(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    masking: Masking,
    scoring: Scoring,
    *,
    block: int | None = None,
) -> Array:
    """Returns attention [B, T, H, V] in q's dtype; differentiable backwards, once.

    Blocks that the causal order or the window hides are skipped where rows are in order; blocks wholly visible are
    not masked where row order decides alone; blocks that segments or positions hide from every row of the batch are
    skipped as they are met. Keys and values are never repeated: the R = H/G query heads of one share its blocks.

    Args:
        q_BTHK: queries.
        k_BSGK: keys.
        v_BSGV: values, maybe of another dim than the keys.
        masking: what is visible.
        scoring: how weights are made; the bias is called on blocks.
        block: queries, and keys, a block; None: as measured, see `block_size`.
    """
    block = block or block_size(masking.q_len)
    job = Job.of(
        q_BTHK,
        k_BSGK,
        masking,
        soft_cap=scoring.soft_cap,
        scale=scoring.scale,
        block_q=min(block, masking.q_len),
        block_k=min(block, masking.kv_len),
    )
    places = gather_places(masking, has_bias=scoring.bias is not None)
    constants: Constants = ()
    if scoring.bias is not None:
        biases = BiasBlocks(scoring.bias, job.form(places))
        job, constants = dataclasses.replace(job, biases=biases), biases.constants
    return _with_derivative(job)(q_BTHK, k_BSGK, v_BSGV, scoring.sinks, places, constants)


def block_size(length: int) -> int:
    """Returns how many queries, and keys, a block holds."""
    return 64 if length <= 256 else 128 if length <= 1024 else 256


def _with_derivative(job: Job) -> Callable[[Array, Array, Array, Array | None, Places, Constants], Array]:
    """Returns the function of (q, k, v, sinks, places, constants) with its own backward pass."""

    @jax.custom_vjp
    def attention(q: Array, k: Array, v: Array, sinks: Array | None, places: Places, constants: Constants) -> Array:
        return passes.forward(job, q, k, v, sinks, places, constants)[0]

    def forward(q: Array, k: Array, v: Array, sinks: Any, places: Places, constants: Constants) -> tuple[Array, tuple]:
        result = passes.forward(job, q, k, v, sinks, places, constants)
        out, logsumexp = (checkpoint_name(x, SAVED) for x in result)
        return out, (q, k, v, sinks, places, constants, out, logsumexp)

    def backward(saved: tuple, d_out: Array) -> tuple:
        q, k, v, sinks, places, constants, out, logsumexp = saved
        result = passes.backward(job, q, k, v, sinks, places, constants, out, logsumexp, d_out)
        dq, dk, dv, d_sinks, gradients = result
        return dq, dk, dv, d_sinks, None, job.biases.cotangents(constants, gradients) if job.biases else ()

    attention.defvjp(forward, backward)
    return attention


def _kept(length: int, window: int | None, bias: bool) -> int:
    """Returns the scores that a head keeps of one row: none, but where the blocks are written out.

    There XLA sees that the backward pass computes the forward pass's scores again, and keeps those instead.
    """
    size = min(block_size(length), length)
    count = blocks(length, size)
    if count > MOST_UNROLLED or bias:
        return 0
    firsts = [0 if window is None else max(0, row * size - window + 1) // size * size for row in range(count)]
    return sum(size * (min((row + 1) * size, length) - first) for row, first in enumerate(firsts))


KERNEL = Kernel(blocked, rank=6, any_dims=True, copies=True, kept=_kept)
