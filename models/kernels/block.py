"""One block of blocked attention: its rows and columns, its mask, its scores and their derivatives.

Queries that share a key/value head lie side by side, M = R T' columns of [B, G, K, M] for R heads and T' rows: keys and
values are never repeated. Scores are [B, G, S', M], keys down and queries across, so that keys and values enter the
products as they are: XLA's CPU products were measured fastest this way round.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.kernels.bias_blocks import BiasBlocks, Constants, Form
from models.kernels.masks import Masking, visible

SAVED = "attention_saved"  # names what model.remat = attention keeps: the output, and the softmax statistics
MOST_UNROLLED = 4  # blocks of queries, and of keys

Index = Any  # a row's number: an int, or an int32 scalar inside a loop
Span = tuple[Index, int]  # (first, how many)
Places = dict[str, Array]  # what masks and biases read: positions and segments, [B|1, T] and [B|1, S]


@dataclasses.dataclass(frozen=True)
class Job:
    """The static facts of a call. Axes: G key/value heads, R query heads for each, K head dim, T queries, S keys."""

    T: int
    S: int
    G: int
    R: int
    K: int
    causal: bool
    window: int | None
    ordered: bool  # the order of rows bounds what is visible
    by_index: bool  # masks compare row numbers
    exact: bool  # the order of rows decides alone
    empty_rows: bool  # a query may see nothing
    soft_cap: float | None
    scale: float
    block_q: int
    block_k: int
    q_dtype: Any
    dtype: Any  # of scores, softmax and sums
    biases: BiasBlocks | None = None

    @classmethod
    def of(cls, q: Array, k: Array, masking: Masking, **settings: Any) -> "Job":
        """Reads the facts from the arguments."""
        _, T, H, K = q.shape
        S, G = k.shape[1:3]
        facts = {name: getattr(masking, name) for name in ("causal", "window", "ordered", "by_index", "exact")}
        dtype = jnp.promote_types(q.dtype, jnp.float32)
        facts |= {"empty_rows": masking.empty_rows, "q_dtype": q.dtype, "dtype": dtype}
        return cls(T, S, G, H // G, K, **facts, **settings)

    @property
    def one_row(self) -> bool:
        """Whether one block holds all queries."""
        return self.block_q >= self.T

    @property
    def unrolled(self) -> bool:
        """Whether the blocks of queries are few enough to be written out, each with all its keys as one block.

        XLA on the CPU runs a loop's body on one core, and the running softmax of a loop over keys costs passes of its
        own: 1.4 times as long at 256 tokens. Longer sequences would take long to compile, and more memory.
        """
        few = max(blocks(self.T, self.block_q), blocks(self.S, self.block_k)) <= MOST_UNROLLED
        return few and self.exact and self.biases is None

    @property
    def prescaled(self) -> bool:
        """Whether queries are scaled beforehand, which spares a pass over the scores; 16 bits would round them."""
        return self.q_dtype == self.dtype

    @property
    def offset(self) -> int:
        """The key row of query 0."""
        return self.S - self.T

    def bounds(self, rows: Span) -> tuple[Index, Index, Index, Index]:
        """Returns (low, full_low, full_high, high): some row may see low .. high, every row sees full_low .. full_high.

        By the order of rows alone; neither clipped to 0 .. S nor free of crossed ends.
        """
        first = rows[0] + self.offset
        last = first + rows[1] - 1
        low, full_low, full_high, high = 0, 0, self.S, self.S
        if self.causal and self.ordered:
            full_high, high = first + 1, last + 1
            if self.window is not None:
                low, full_low = first - self.window + 1, last - self.window + 1
        return low, full_low, full_high, high

    def mask(self, places: Places, rows: Span, columns: Span) -> Array | None:
        """Returns which scores of a block count, bool [B|1, 1, S', M], or None for all of them."""
        if self.by_index:
            q_places = (jnp.arange(rows[1]) + (rows[0] + self.offset))[None]
            kv_places = (jnp.arange(columns[1]) + columns[0])[None]
        else:
            q_places, kv_places = cut(places["q"], rows, 1), cut(places["kv"], columns, 1)
        q_segments = kv_segments = None
        if "q_segments" in places:
            q_segments, kv_segments = cut(places["q_segments"], rows, 1), cut(places["kv_segments"], columns, 1)
            q_segments = jnp.tile(q_segments, (1, self.R))
        q_places = jnp.tile(q_places, (1, self.R))
        mask = visible(q_places, kv_places, q_segments, kv_segments, self.causal, self.window)
        return None if mask is None else jnp.swapaxes(mask, 1, 2)[:, None]

    def form(self, places: Places) -> Form:
        """Returns the shapes of the positions that the bias of a block is called with."""
        return (places["q"].shape[0], self.block_q), (places["kv"].shape[0], self.block_k)


def gather_places(masking: Masking, has_bias: bool) -> Places:
    """Returns the arrays that masks and biases read; those not needed are left out."""
    places = {}
    if has_bias or not masking.by_index:
        q_places, kv_places = masking.places()
        places["q"], places["kv"] = jnp.asarray(q_places), jnp.asarray(kv_places)
    if masking.q_segments is not None and masking.kv_segments is not None:
        places["q_segments"], places["kv_segments"] = masking.q_segments, masking.kv_segments
    return places


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores [B, G, S', M] of a block; `tanh` is the soft cap's, kept for its derivative."""

    values: Array
    tanh: Array | None

    @classmethod
    def of(
        cls, job: Job, q: Array, k: Array, places: Places, constants: Constants, rows: Span, columns: Span
    ) -> "Scores":
        """Computes them, the mask left out, from queries [B, G, K, M] and keys [B, G, S', K]."""
        values = product(job, "bgkm,bgsk->bgsm", q, k)
        values = values if job.prescaled else job.scale * values
        tanh = None
        if job.soft_cap is not None:
            tanh = jnp.tanh(values / job.soft_cap)
            values = job.soft_cap * tanh
        if job.biases is not None:
            bias = job.biases(constants, cut(places["q"], rows, 1), cut(places["kv"], columns, 1))
            values += jnp.swapaxes(bias.reshape(bias.shape[0], job.G, -1, columns[1]), 2, 3)
        return cls(values, tanh)


def bias_gradient(
    job: Job, d_scores: Array, places: Places, constants: Constants, rows: Span, columns: Span
) -> list[Array]:
    """Returns the gradients of the bias's floating constants from a block's scores' [B, G, S', M]."""
    if job.biases is None:
        return []
    d_bias = jnp.swapaxes(d_scores, 2, 3).reshape(d_scores.shape[0], job.G * job.R, rows[1], columns[1])
    return job.biases.gradient(constants, cut(places["q"], rows, 1), cut(places["kv"], columns, 1), d_bias)


class QueryRows(NamedTuple):
    """What the backward pass reads of a block of queries: [B, G, K, M] and [B, G, 1, M]."""

    q: Array
    d_out: Array
    logsumexp: Array
    delta: Array  # the row sums of out * d_out


def derivatives(
    job: Job,
    given: QueryRows,
    k: Array,
    v: Array,
    places: Places,
    constants: Constants,
    rows: Span,
    columns: Span,
    mask: Array | None,
) -> tuple[Array, Array, Array, list[Array]]:
    """Returns a block's part in the gradients of q [B, G, K, M], k, v [B, G, S', K] and the bias's constants.

    The weights are exp(scores - logsumexp).
    """
    q, d_out, logsumexp, delta = given
    with jax.named_scope("attention_scores"):
        scores = Scores.of(job, q, k, places, constants, rows, columns)
        weights = jnp.exp((scores.values if mask is None else jnp.where(mask, scores.values, -jnp.inf)) - logsumexp)
    with jax.named_scope("value_mixing"):
        dv = product(job, "bgsm,bgkm->bgsk", weights.astype(v.dtype), d_out)
        d_weights = product(job, "bgkm,bgsk->bgsm", d_out, v)
    with jax.named_scope("attention_scores"):
        d_scores = weights * (d_weights - delta)
        d_constants = bias_gradient(job, d_scores, places, constants, rows, columns)
        if scores.tanh is not None:
            d_scores = d_scores * (1 - scores.tanh**2)
        d_products = d_scores.astype(q.dtype)
        dq = product(job, "bgsm,bgsk->bgkm", d_products, k)
        dk = product(job, "bgsm,bgkm->bgsk", d_products, q)
    return dq, dk, dv, d_constants


def blocks(length: Index, size: int) -> Index:
    """Returns how many blocks cover a length."""
    return -(-length // size)


def cut(x: Array, span: Span, axis: int) -> Array:
    """Returns a span of an axis."""
    first, size = span
    if isinstance(first, int):
        return lax.slice_in_dim(x, first, first + size, axis=axis)
    return lax.dynamic_slice_in_dim(x, first, size, axis=axis)


def product(job: Job, axes: str, a: Array, b: Array) -> Array:
    """Returns an einsum that adds up in the scores' dtype."""
    return jnp.einsum(axes, a, b, preferred_element_type=job.dtype)


def cut_queries(x: Array, rows: Span) -> Array:
    """Returns rows of x [B, G, _, R, T] as [B, G, _, M]."""
    part = cut(x, rows, 4)
    return part.reshape(*part.shape[:3], -1)


def fold_queries(job: Job, x_BTHK: Array) -> Array:
    """Returns queries, or what has their shape, as [B, G, K, R, T]."""
    return x_BTHK.reshape(*x_BTHK.shape[:2], job.G, job.R, x_BTHK.shape[-1]).transpose(0, 2, 4, 3, 1)


def unfold_queries(x_BGKRT: Array) -> Array:
    """Undoes `fold_queries`."""
    B, G, K, R, T = x_BGKRT.shape
    return x_BGKRT.transpose(0, 4, 1, 3, 2).reshape(B, T, G * R, K)


def normalised(job: Job, largest: Array, total: Array, out: Array) -> tuple[Array, Array]:
    """Returns the output [B, G, K, M] and the logsumexp [B, G, 1, M] of rows; zeros and inf where none is seen.

    With a logsumexp of inf the backward pass finds weights of zero.
    """
    if job.empty_rows:
        seen = total > 0
        total = jnp.where(seen, total, 1)
        logsumexp = jnp.where(seen, largest + jnp.log(total), jnp.inf)
    else:
        logsumexp = largest + jnp.log(total)
    return out / total, logsumexp


def finite(job: Job, largest: Array) -> Array:
    """Returns the rows' largest scores with 0 for -inf, so that exp(score - largest) is 0 where nothing is seen.

    With a window, a row may see nothing of the first block that its neighbours see.
    """
    return jnp.where(largest == -jnp.inf, 0, largest) if job.empty_rows or job.window is not None else largest
