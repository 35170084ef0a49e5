"""Blocked attention for short rows: code for each block of queries, against all the keys it sees."""

from collections.abc import Iterator

import jax.numpy as jnp
from jax import Array

from models.kernels.bias_blocks import Constants, Form
from models.kernels.block import (
    Job,
    Places,
    QueryRows,
    Scores,
    Span,
    cut,
    derivatives,
    finite,
    fold_queries,
    merge,
    normalised,
    product,
    split,
    unfold_queries,
)

Piece = tuple[Span, bool]  # columns, and whether they need a mask


def row_blocks(job: Job) -> list[Span]:
    """Returns the blocks of queries; the last may be shorter."""
    return [(first, min(job.block_q, job.T - first)) for first in range(0, job.T, job.block_q)]


def pieces(job: Job, rows: Span) -> list[Piece]:
    """Returns the keys a block of queries sees as at most three pieces; only the middle one needs no mask."""
    low, full_low, full_high, high = job.bounds(rows)
    grain = min(16, job.block_q)  # ends at multiples of a vector's length
    low, high = max(low // grain * grain, 0), min(-(-high // grain) * grain, job.S)
    full_low, full_high = max(-(-full_low // grain) * grain, low), min(full_high, high)
    if full_high != high:
        full_high = full_high // grain * grain
    if not job.exact or full_high - full_low < grain:
        return [((low, high - low), True)] if high > low else []
    found: list[Piece] = [((low, full_low - low), True), ((full_low, full_high - full_low), False)]
    found.append(((full_high, high - full_high), True))
    return [piece for piece in found if piece[0][1] > 0]


def forms(job: Job, places: Places) -> Iterator[Form]:
    """Yields the forms of block that the bias is called with."""
    for rows in row_blocks(job):
        for columns, _ in pieces(job, rows):
            yield job.form(places, rows[1], columns[1])


def forward(
    job: Job, q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, places: Places, constants: Constants
) -> tuple[Array, Array]:
    """Returns the output [B, T, H, K] and the logsumexp [B, G, 1, R, T]."""
    q, k, v = fold_queries(job, q_BTHK), jnp.swapaxes(k_BSGK, 1, 2), jnp.swapaxes(v_BSGK, 1, 2)
    outs, sums = [], []
    for rows in row_blocks(job):
        out, logsumexp = _rows_forward(job, cut(q, rows, 4), k, v, places, constants, rows)
        outs.append(out.astype(q.dtype))
        sums.append(logsumexp)
    return unfold_queries(jnp.concatenate(outs, axis=4)), jnp.concatenate(sums, axis=4)


def _rows_forward(
    job: Job, q: Array, k: Array, v: Array, places: Places, constants: Constants, rows: Span
) -> tuple[Array, Array]:
    seen = pieces(job, rows)
    if not seen:
        return jnp.zeros_like(q), jnp.full((*q.shape[:2], 1, *q.shape[3:]), jnp.inf, job.dtype)
    scores = []
    for columns, masked in seen:
        values = Scores.of(job, q, cut(k, columns, 2), places, constants, rows, columns).values
        mask = job.mask(places, rows, columns) if masked else None
        scores.append(values if mask is None else jnp.where(mask, values, -jnp.inf))
    largest = finite(job, _reduce(jnp.maximum, [jnp.max(values, axis=2, keepdims=True) for values in scores]))
    weights = [jnp.exp(values - largest) for values in scores]
    total = _reduce(jnp.add, [jnp.sum(w, axis=2, keepdims=True) for w in weights])
    parts = [
        product(job, "bgsm,bgsk->bgkm", merge(w).astype(v.dtype), cut(v, columns, 2))
        for w, (columns, _) in zip(weights, seen, strict=True)
    ]
    return normalised(job, largest, total, split(job, _reduce(jnp.add, parts)))


def backward(
    job: Job,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGK: Array,
    places: Places,
    constants: Constants,
    out_BTHK: Array,
    logsumexp: Array,
    d_out_BTHK: Array,
) -> tuple[Array, Array, Array, list[Array]]:
    """Returns the gradients of q, k, v and of the bias's floating constants."""
    q, k, v = fold_queries(job, q_BTHK), jnp.swapaxes(k_BSGK, 1, 2), jnp.swapaxes(v_BSGK, 1, 2)
    d_out = fold_queries(job, d_out_BTHK)
    delta = jnp.sum(d_out.astype(job.dtype) * fold_queries(job, out_BTHK).astype(job.dtype), axis=2, keepdims=True)
    dk, dv = jnp.zeros(k.shape, job.dtype), jnp.zeros(v.shape, job.dtype)
    dq_blocks = []
    d_constants = [] if job.biases is None else job.biases.zeros(constants)
    for rows in row_blocks(job):
        given = QueryRows(*(cut(x, rows, 4) for x in (q, d_out, logsumexp, delta)))
        dq_rows = jnp.zeros(merge(given.q).shape, job.dtype)
        for columns, masked in pieces(job, rows):
            mask = job.mask(places, rows, columns) if masked else None
            k_part, v_part = cut(k, columns, 2), cut(v, columns, 2)
            part = derivatives(job, given, k_part, v_part, places, constants, rows, columns, mask)
            dq_rows += part[0]
            here = slice(columns[0], columns[0] + columns[1])
            dk, dv = dk.at[:, :, here].add(part[1]), dv.at[:, :, here].add(part[2])
            d_constants = [total + d for total, d in zip(d_constants, part[3], strict=True)]
        dq_blocks.append(split(job, dq_rows))
    dq = unfold_queries(job.scale * jnp.concatenate(dq_blocks, axis=4))
    dk, dv = jnp.swapaxes(job.scale * dk, 1, 2), jnp.swapaxes(dv, 1, 2)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), d_constants


def _reduce(function: object, parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)  # type: ignore[operator]
    return total
