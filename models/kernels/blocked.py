"""Attention in blocks, pure JAX: memory linear in length, hidden blocks skipped, a backward pass of its own.

As in FlashAttention-2 (Dao, arXiv 2307.08691): the forward pass keeps the output and the logsumexp of each row; the
backward pass computes the weights again, block by block. Scores lie transposed, [S', R * T'] for R = H/G query heads
that share a key/value head: keys and values are read as they are, never repeated, and XLA's CPU products were measured
fastest this way round.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from models.kernels import blocked_loop, blocked_unrolled
from models.kernels.bias_blocks import BiasBlocks, Constants
from models.kernels.block import Job, Places, gather_places
from models.kernels.masks import Masking
from models.positions.scheme import BiasFunction

# Up to this many blocks of queries each gets its own code; more of them share one loop, whose compile time is constant.
UNROLLED = 8


def blocked(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGK: Array,
    masking: Masking,
    *,
    bias: BiasFunction | None,
    soft_cap: float | None,
    scale: float,
    block_q: int | None = None,
    block_k: int | None = None,
    unrolled: bool | None = None,
) -> Array:
    """Returns attention [B, T, H, K] in q's dtype; differentiable backwards, once.

    Blocks that the causal order or the window hides are skipped where rows are in order; blocks wholly visible are
    not masked where row order decides alone. Query head h reads key/value head h // (H/G).

    Args:
        q_BTHK: queries.
        k_BSGK: keys.
        v_BSGK: values.
        masking: what is visible.
        bias: added to the scores; called on blocks, gradients reach the arrays it closes over.
        soft_cap: of the scores.
        scale: multiplies q.k.
        block_q: queries a block; None: as measured.
        block_k: keys a block of the loop; None: as measured.
        unrolled: code for each block of queries, or a loop; None: by their number.
    """
    block_q = min(block_q or default_block(masking.q_len), masking.q_len)
    if unrolled is None:
        unrolled = math.ceil(masking.q_len / block_q) <= UNROLLED
    path: Any = blocked_unrolled if unrolled else blocked_loop
    places = gather_places(masking, has_bias=bias is not None)
    job = Job.of(q_BTHK, k_BSGK, masking, soft_cap=soft_cap, scale=scale, block_q=block_q,
                 block_k=min(block_k or block_q, masking.kv_len))  # fmt: skip
    constants: Constants = ()
    if bias is not None:
        biases = BiasBlocks(bias, path.forms(job, places))
        job, constants = dataclasses.replace(job, biases=biases), biases.constants
    return _with_derivative(path, job)(q_BTHK, k_BSGK, v_BSGK, places, constants)


def _with_derivative(path: Any, job: Job) -> Callable[..., Array]:
    """Returns the function of (q, k, v, places, constants) with the path's own backward pass."""

    @jax.custom_vjp
    def attention(q: Array, k: Array, v: Array, places: Places, constants: Constants) -> Array:
        return path.forward(job, q, k, v, places, constants)[0]

    def forward(q: Array, k: Array, v: Array, places: Places, constants: Constants) -> tuple[Array, tuple]:
        out, logsumexp = path.forward(job, q, k, v, places, constants)
        return out, (q, k, v, places, constants, out, logsumexp)

    def backward(saved: tuple, d_out: Array) -> tuple:
        constants = saved[4]
        dq, dk, dv, gradients = path.backward(job, *saved, d_out)
        return dq, dk, dv, None, job.biases.cotangents(constants, gradients) if job.biases else ()

    attention.defvjp(forward, backward)
    return attention


def default_block(length: int) -> int:
    """Returns how many queries a block holds."""
    return 64 if length <= 512 else 128 if length <= 1024 else 256
