"""The passes of blocked attention: a loop over blocks of queries, and in it one over the blocks of keys they see."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.kernels.bias_blocks import Constants
from models.kernels.block import (
    Index,
    Job,
    Places,
    QueryRows,
    Scores,
    Span,
    blocks,
    cut,
    cut_queries,
    derivatives,
    finite,
    fold_queries,
    normalised,
    product,
    unfold_queries,
)


def forward(
    job: Job,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    sinks: Array | None,
    places: Places,
    constants: Constants,
) -> tuple[Array, Array]:
    """Returns the output [B, T, H, V] and the logsumexp [B, G, 1, R, T]."""
    q, k, v, places = _padded(job, q_BTHK, k_BSGK, v_BSGV, places)
    if job.T % job.block_q:
        job = dataclasses.replace(job, empty_rows=True)  # padded queries may see nothing

    def rows_forward(index: Index) -> tuple[Array, Array]:
        rows = (index * job.block_q, job.block_q)
        q_rows = cut_queries(q, rows)

        def step(columns: Span, masked: bool, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            largest, total, out = carry
            with jax.named_scope("attention_scores"):
                scores = Scores.of(job, q_rows, cut(k, columns, 2), places, constants, rows, columns).values
                if masked:
                    scores = jnp.where(_mask(job, places, rows, columns), scores, -jnp.inf)
                expanded = jnp.maximum(largest, jnp.max(scores, axis=2, keepdims=True))
                safe = finite(job, expanded)
                weights = jnp.exp(scores - safe)
                shrink = jnp.exp(largest - safe)
                total = total * shrink + jnp.sum(weights, axis=2, keepdims=True)
            with jax.named_scope("value_mixing"):
                more = product(job, "bgsm,bgsk->bgkm", weights.astype(v.dtype), cut(v, columns, 2))
                return expanded, total, out * shrink + more

        largest, total, out = _over_columns(job, places, rows, step, _start(job, q_rows, v.shape[3], sinks))
        with jax.named_scope("value_mixing"):
            out, logsumexp = normalised(job, finite(job, largest), total, out)
        return out.astype(q.dtype), logsumexp

    if job.unrolled:
        parts = [rows_forward(index) for index in range(blocks(job.T, job.block_q))]
        outs, sums = (jnp.stack(x) for x in zip(*parts, strict=True))
    elif job.one_row:
        # Known row numbers leave no loop if there is one block.
        outs, sums = (x[None] for x in rows_forward(0))
    else:
        outs, sums = lax.map(rows_forward, jnp.arange(blocks(job.T, job.block_q)))
    return unfold_queries(_joined(job, outs)), _joined(job, sums)


def backward(
    job: Job,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGV: Array,
    sinks: Array | None,
    places: Places,
    constants: Constants,
    out_BTHV: Array,
    logsumexp: Array,
    d_out_BTHV: Array,
) -> tuple[Array, Array, Array, Array | None, list[Array]]:
    """Returns the gradients of q, k, v, the sinks and of the bias's floating constants."""
    q, k, v, places = _padded(job, q_BTHK, k_BSGK, v_BSGV, places)
    d_out = fold_queries(job, d_out_BTHV)
    with jax.named_scope("attention_scores"):
        delta_BTH1 = jnp.sum(d_out_BTHV.astype(job.dtype) * out_BTHV.astype(job.dtype), axis=3, keepdims=True)
    delta = fold_queries(job, delta_BTH1)
    d_sinks = None if sinks is None else sinks_gradient(job, sinks, logsumexp, delta)
    # A padded query's weights are exp(score - inf) = 0: it adds nothing to dk and dv.
    logsumexp = _pad(logsumexp, 4, job.block_q, jnp.inf)
    d_out, delta = _pad(d_out, 4, job.block_q, 0), _pad(delta, 4, job.block_q, 0)

    def rows_backward(carry: Any, index: Index) -> tuple[Any, Array]:
        rows = (index * job.block_q, job.block_q)
        given = QueryRows(*(cut_queries(x, rows) for x in (q, d_out, logsumexp, delta)))

        def step(columns: Span, masked: bool, carry: Any) -> Any:
            dq_rows, dk, dv, d_constants = carry
            with jax.named_scope("attention_scores"):
                mask = _mask(job, places, rows, columns) if masked else None
            k_part, v_part = cut(k, columns, 2), cut(v, columns, 2)
            part = derivatives(job, given, k_part, v_part, places, constants, rows, columns, mask)
            with jax.named_scope("value_mixing"):
                dv = _added(dv, part[2], columns)
            with jax.named_scope("attention_scores"):
                dk = _added(dk, part[1], columns)
                return dq_rows + part[0], dk, dv, [total + d for total, d in zip(d_constants, part[3], strict=True)]

        dq_rows = jnp.zeros(given.q.shape, job.dtype)
        dq_rows, *carry = _over_columns(job, places, rows, step, (dq_rows, *carry))
        return tuple(carry), (job.scale * dq_rows).astype(q_BTHK.dtype)

    d_constants = [] if job.biases is None else job.biases.zeros(constants)
    start = jnp.zeros(k.shape, job.dtype), jnp.zeros(v.shape, job.dtype), d_constants
    if job.unrolled:
        results = []
        for index in range(blocks(job.T, job.block_q)):
            start, dq_rows = rows_backward(start, index)
            results.append(dq_rows)
        (dk, dv, d_constants), dq = start, jnp.stack(results)
    elif job.one_row:
        (dk, dv, d_constants), dq = rows_backward(start, 0)
        dq = dq[None]
    else:
        (dk, dv, d_constants), dq = lax.scan(rows_backward, start, jnp.arange(blocks(job.T, job.block_q)))
    dk = dk if job.prescaled else job.scale * dk
    dk, dv = (jnp.swapaxes(x[:, :, : job.S], 1, 2) for x in (dk, dv))
    return unfold_queries(_joined(job, dq)), dk.astype(k.dtype), dv.astype(v.dtype), d_sinks, d_constants


def sinks_gradient(job: Job, sinks: Array, logsumexp: Array, delta: Array) -> Array:
    """Returns the gradient of the sinks [H] from [B, G, 1, R, T]: weight times (d weight - delta), d weight being 0.

    The logsumexp includes the sink.
    """
    weights = jnp.exp(sinks.astype(job.dtype).reshape(1, job.G, 1, job.R, 1) - logsumexp)
    return -jnp.sum(weights * delta, axis=(0, 2, 4)).reshape(sinks.shape).astype(sinks.dtype)


def _start(job: Job, q_rows: Array, value_dim: int, sinks: Array | None) -> tuple[Array, Array, Array]:
    """Returns the largest score and the total [B, G, 1, M], and the output [B, G, V, M], before any key is met."""
    shape = (*q_rows.shape[:2], 1, q_rows.shape[3])
    if sinks is None:
        largest, total = jnp.full(shape, -jnp.inf, job.dtype), jnp.zeros(shape, job.dtype)
    else:
        sink = sinks.astype(job.dtype).reshape(1, job.G, 1, job.R, 1)
        largest = jnp.broadcast_to(sink, (*shape[:3], job.R, job.block_q)).reshape(shape)
        total = jnp.ones(shape, job.dtype)
    return largest, total, jnp.zeros((*shape[:2], value_dim, shape[3]), job.dtype)


def column_runs(job: Job, rows: Span) -> list[tuple[Index, Index, bool]]:
    """Returns the blocks of keys that a block of queries sees, as runs (first, after the last, whether masked)."""
    size, count = job.block_k, blocks(job.S, job.block_k)
    low, full_low, full_high, high = job.bounds(rows)
    low, high = clip(low // size, 0, count), clip(blocks(high, size), 0, count)
    if not job.exact:
        return [(low, high, True)]
    full_low = clip(blocks(full_low, size), low, high)
    full_high = clip(clip(full_high, 0, job.S) // size, full_low, high)
    runs = [(full_low, full_high, False)]
    if job.window is not None:
        runs.insert(0, (low, full_low, True))
    if job.causal or job.S % size:
        runs.append((full_high, high, True))
    return runs


def _over_columns(job: Job, places: Places, rows: Span, step: Callable[[Span, bool, Any], Any], carry: Any) -> Any:
    """Runs `step` over the blocks of keys that a block of queries sees."""

    def body(masked: bool, index: Index, carry: Any) -> Any:
        columns = (index * job.block_k, job.block_k)
        if job.exact:
            return step(columns, masked, carry)
        # Segments and positions may hide a whole block from every row of the batch.
        with jax.named_scope("attention_scores"):
            anything = jnp.any(_mask(job, places, rows, columns))
        return lax.cond(anything, lambda carry: step(columns, masked, carry), lambda carry: carry, carry)

    runs = column_runs(job, rows)
    if job.unrolled:
        first, last = runs[0][0] * job.block_k, runs[-1][1] * job.block_k
        masked = any(end > start for start, end, masked in runs if masked)
        return step((first, last - first), masked, carry) if last > first else carry
    for first, last, masked in runs:
        if isinstance(first, int) and isinstance(last, int) and last - first <= 1:
            carry = body(masked, first, carry) if last > first else carry
        else:
            carry = lax.fori_loop(first, last, functools.partial(body, masked), carry)
    return carry


def _mask(job: Job, places: Places, rows: Span, columns: Span) -> Array:
    """The block's mask, with the keys that padding added hidden."""
    real = (jnp.arange(columns[1]) + columns[0] < job.S)[None, None, :, None]
    mask = job.mask(places, rows, columns)
    return real if mask is None else mask & real


def _padded(job: Job, q: Array, k: Array, v: Array, places: Places) -> tuple[Array, Array, Array, Places]:
    """Returns q [B, G, K, R, T], k, v [B, G, S, K] and the places, T and S raised to whole blocks."""
    q = _pad(fold_queries(job, job.scale * q if job.prescaled else q), 4, job.block_q, 0)
    k, v = (_pad(jnp.swapaxes(x, 1, 2), 2, job.block_k, 0) for x in (k, v))
    size = {"q": job.block_q, "kv": job.block_k, "q_segments": job.block_q, "kv_segments": job.block_k}
    # Positions repeat the last one: a bias must not meet positions that do not occur.
    return q, k, v, {name: _pad(x, 1, size[name], None) for name, x in places.items()}


def _pad(x: Array, axis: int, size: int, value: float | None) -> Array:
    """Raises an axis to a multiple of `size`, with a value or (None) the last one repeated."""
    more = -x.shape[axis] % size
    if not more:
        return x
    widths = [(0, more if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, mode="edge") if value is None else jnp.pad(x, widths, constant_values=value)


def _joined(job: Job, parts: Array) -> Array:
    """Returns [blocks, B, G, K, M] as [B, G, K, R, T], padding cut off."""
    joined = jnp.moveaxis(parts.reshape(*parts.shape[:4], job.R, job.block_q), 0, 4)
    return joined.reshape(*joined.shape[:4], -1)[..., : job.T]


def _added(total: Array, part: Array, columns: Span) -> Array:
    return lax.dynamic_update_slice_in_dim(total, cut(total, columns, 2) + part, columns[0], axis=2)


def clip(x: Index, low: Index, high: Index) -> Index:
    """Returns x held within bounds; an int where all are."""
    if all(isinstance(value, int) for value in (x, low, high)):
        return min(max(x, low), high)
    return jnp.clip(x, low, high)
