"""The fused kernel's passes for TPUs, in Pallas through Mosaic: the grid goes over pairs of blocks, sums are in VMEM.

Keys are down and queries across, so that what a query has one of (logsumexp, delta) lies along lanes and takes no more
memory than it must. Arrays are [B, H, T, K] here. The pairs of blocks that are hidden are neither computed nor read:
the grid's last axis begins at the first block that counts (known before the kernel starts) and stays at the last.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.kernels.fused.call import HIDDEN, Call, Places, bounds, derivative, dot, scored

Refs = dict[str, Any]
Shapes = Mapping[str, tuple[tuple[int, ...], Any]]
# The program's place in the grid, with the bounds -> the index of a block.
Index = Callable[..., tuple[Any, ...]]


def forward(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the output [B, T, H, V] and the logsumexp [B, H, T], at padded lengths; inf where nothing is seen."""
    size = call.tiles.forward
    low, high, _, _ = bounds(call, given, size.q, size.k)
    (B, T, H, _), V = arrays["q"].shape, arrays["v"].shape[3]

    def kernel(refs: Refs, at: "Place") -> None:
        @at.first
        def _() -> None:
            sink = refs["sinks"][at.head] if "sinks" in refs else None
            refs["largest"][...] = jnp.full((1, size.q), HIDDEN if sink is None else sink, jnp.float32)
            refs["total"][...] = jnp.full((1, size.q), 0.0 if sink is None else 1.0, jnp.float32)
            refs["sum"][...] = jnp.zeros((V, size.q), jnp.float32)

        @at.counts
        def _() -> None:
            products = dot(refs["k"][...], refs["q"][...], (1, 1))
            scores = scored(call, products, _places(call, refs, at, size), _reader(refs)).values
            largest = refs["largest"][...]
            grown = jnp.maximum(largest, jnp.max(scores, axis=0, keepdims=True))
            safe = jnp.where(grown == HIDDEN, 0.0, grown)
            weights = jnp.exp(scores - safe)
            shrink = jnp.exp(largest - safe)
            refs["largest"][...] = grown
            refs["total"][...] = refs["total"][...] * shrink + jnp.sum(weights, axis=0, keepdims=True)
            more = dot(refs["v"][...], weights.astype(refs["v"].dtype), (0, 0))
            refs["sum"][...] = refs["sum"][...] * shrink + more

        @at.last
        def _() -> None:
            total = refs["total"][...]
            seen = total > 0
            total = jnp.where(seen, total, 1.0)
            refs["out"][...] = (refs["sum"][...] / total).T.astype(refs["out"].dtype)
            refs["logsumexp"][...] = jnp.where(seen, refs["largest"][...] + jnp.log(total), jnp.inf)

    outputs: Shapes = {"out": ((B, H, T, V), arrays["q"].dtype), "logsumexp": ((B, H, 1, T), jnp.float32)}
    scratch: Shapes = {
        "largest": ((1, size.q), jnp.float32), "total": ((1, size.q), jnp.float32), "sum": ((V, size.q), jnp.float32),
    }  # fmt: skip
    out, logsumexp = _by_query(call, "forward", kernel, size, (low, high), arrays, given, (outputs, scratch))
    return jnp.swapaxes(out, 1, 2), logsumexp[:, :, 0]


def backward_queries(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array | None]:
    """Returns the gradients of the queries [B, T, H, K] and of the bias's scalars [H, N] (None: nothing is learned)."""
    size, layout = call.tiles.queries, call.layout
    low, high, _, _ = bounds(call, given, size.q, size.k)
    B, T, H, K = arrays["q"].shape
    learned = layout is not None and layout.learned

    def kernel(refs: Refs, at: "Place") -> None:
        @at.first
        def _() -> None:
            refs["sum"][...] = jnp.zeros((K, size.q), jnp.float32)
            if learned:
                refs["scalars_sum"][...] = jnp.zeros((1, N), jnp.float32)

        @at.counts
        def _() -> None:
            q, k = refs["q"][...], refs["k"][...]
            places, read = _places(call, refs, at, size), _reader(refs)
            scores = scored(call, dot(k, q, (1, 1)), places, read)
            weights = jnp.exp(scores.values - refs["logsumexp"][...])
            d_scores = weights * (dot(refs["v"][...], refs["d_out"][...], (1, 1)) - refs["delta"][...])
            if learned and layout is not None:
                total = refs["scalars_sum"][...]
                refs["scalars_sum"][...] = layout.gradient(read, places.q, places.k, d_scores, total)
            d_products = derivative(scores, d_scores).astype(q.dtype)
            refs["sum"][...] += dot(k, d_products, (0, 0))

        @at.last
        def _() -> None:
            refs["d_q"][...] = (call.scale * refs["sum"][...]).T.astype(refs["d_q"].dtype)
            if learned:
                refs["d_scalars"][...] = refs["scalars_sum"][...]

    N = arrays["scalars"].shape[1] if learned else 0
    outputs: dict[str, Any] = {"d_q": ((B, H, T, K), arrays["q"].dtype)}
    scratch: dict[str, Any] = {"sum": ((K, size.q), jnp.float32)}
    if learned:
        outputs["d_scalars"] = ((B, H, T // size.q, 1, N), jnp.float32)
        scratch["scalars_sum"] = ((1, N), jnp.float32)
    found = _by_query(call, "backward_queries", kernel, size, (low, high), arrays, given, (outputs, scratch))
    return jnp.swapaxes(found[0], 1, 2), jnp.sum(found[1], axis=(0, 2, 3)) if learned else None


def backward_keys(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the gradients of the keys [B, S, G, K] and the values [B, S, G, V]."""
    size = call.tiles.keys
    _, _, low, high = bounds(call, given, size.q, size.k)
    (B, S, G, K), V = arrays["k"].shape, arrays["v"].shape[3]

    def kernel(refs: Refs, at: "Place") -> None:
        @at.first
        def _() -> None:
            refs["k_sum"][...] = jnp.zeros((size.k, K), jnp.float32)
            refs["v_sum"][...] = jnp.zeros((size.k, V), jnp.float32)

        @at.counts
        def _() -> None:
            q, d_out = refs["q"][...], refs["d_out"][...]
            scores = scored(call, dot(refs["k"][...], q, (1, 1)), _places(call, refs, at, size), _reader(refs))
            weights = jnp.exp(scores.values - refs["logsumexp"][...])
            refs["v_sum"][...] += dot(weights.astype(d_out.dtype), d_out, (1, 0))
            d_scores = weights * (dot(refs["v"][...], d_out, (1, 1)) - refs["delta"][...])
            refs["k_sum"][...] += dot(derivative(scores, d_scores).astype(q.dtype), q, (1, 0))

        @at.last
        def _() -> None:
            refs["d_k"][...] = (call.scale * refs["k_sum"][...]).astype(refs["d_k"].dtype)
            refs["d_v"][...] = refs["v_sum"][...].astype(refs["d_v"].dtype)

    outputs: Shapes = {"d_k": ((B, G, S, K), arrays["k"].dtype), "d_v": ((B, G, S, V), arrays["v"].dtype)}
    scratch: Shapes = {"k_sum": ((size.k, K), jnp.float32), "v_sum": ((size.k, V), jnp.float32)}
    d_k, d_v = _by_key(call, "backward_keys", kernel, size, (low, high), arrays, given, (outputs, scratch))
    return jnp.swapaxes(d_k, 1, 2), jnp.swapaxes(d_v, 1, 2)


class Place:
    """Where a program is: its block of queries and of keys, its head, and when it begins, counts and ends."""

    def __init__(self, q: Any, k: Any, head: Any, begins: Any, counts: Any, ends: Any) -> None:
        from jax.experimental import pallas as pl

        self.q, self.k, self.head = q, k, head
        self.first, self.counts, self.last = pl.when(begins), pl.when(counts), pl.when(ends)


def _by_query(call: Call, name: str, kernel: Any, size: Any, ends: Any, arrays: Any, given: Any, shapes: Any) -> Any:
    """Runs a kernel over (row, head, block of queries, block of keys)."""
    from jax.experimental import pallas as pl

    (B, T, H, _), (_, S, G, _) = arrays["q"].shape, arrays["k"].shape
    many = ends[0].shape[0] > 1
    grid = (B, H, T // size.q, S // size.k)

    def block(b: Any, i: Any, j: Any, low: Any, high: Any) -> Any:
        row = b if many else 0
        return jnp.minimum(low[row, i] + j, jnp.maximum(high[row, i] - 1, 0))

    def q_index(b: Any, h: Any, i: Any, j: Any, low: Any, high: Any) -> tuple[Any, ...]:
        return b, h, i

    def k_index(b: Any, h: Any, i: Any, j: Any, low: Any, high: Any) -> tuple[Any, ...]:
        # Not `//`: its lowering asks what kind of TPU is here, and there may be none.
        return b, lax.div(h, H // G), block(b, i, j, low, high)

    def place(low: Any, high: Any) -> Place:
        b, h, i, j = (pl.program_id(axis) for axis in range(4))
        row = b if many else 0
        k = low[row, i] + j
        return Place(i, k, h, j == 0, k < high[row, i], j == grid[3] - 1)

    return _call(call, name, kernel, size, ends, arrays, given, shapes, grid, q_index, k_index, place)


def _by_key(call: Call, name: str, kernel: Any, size: Any, ends: Any, arrays: Any, given: Any, shapes: Any) -> Any:
    """Runs a kernel over (row, key/value head, block of keys, query head of the group, block of queries)."""
    from jax.experimental import pallas as pl

    (B, T, H, _), (_, S, G, _) = arrays["q"].shape, arrays["k"].shape
    many, R = ends[0].shape[0] > 1, H // G
    grid = (B, G, S // size.k, R, T // size.q)

    def block(b: Any, j: Any, i: Any, low: Any, high: Any) -> Any:
        row = b if many else 0
        return jnp.minimum(low[row, j] + i, jnp.maximum(high[row, j] - 1, 0))

    def q_index(b: Any, g: Any, j: Any, r: Any, i: Any, low: Any, high: Any) -> tuple[Any, ...]:
        return b, g * R + r, block(b, j, i, low, high)

    def k_index(b: Any, g: Any, j: Any, r: Any, i: Any, low: Any, high: Any) -> tuple[Any, ...]:
        return b, g, j

    def place(low: Any, high: Any) -> Place:
        b, g, j, r, i = (pl.program_id(axis) for axis in range(5))
        row = b if many else 0
        q = low[row, j] + i
        begins, ends = (r == 0) & (i == 0), (r == R - 1) & (i == grid[4] - 1)
        return Place(q, j, g * R + r, begins, q < high[row, j], ends)

    return _call(call, name, kernel, size, ends, arrays, given, shapes, grid, q_index, k_index, place)


def _call(
    call: Call,
    name: str,
    kernel: Callable[[Refs, Place], None],
    size: Any,
    ends: tuple[Array, Array],
    arrays: Mapping[str, Array],
    given: Mapping[str, Array],
    shapes: tuple[Shapes, Shapes],
    grid: tuple[int, ...],
    q_index: Index,
    k_index: Index,
    place: Callable[[Any, Any], Place],
) -> Any:
    """Runs a kernel; its references go by the names of its inputs, and of the outputs and scratch in `shapes`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def spec(name: str, shape: tuple[int, ...]) -> Any:
        """`q_index` and `k_index` give (row, head, block) of what is read of queries and of keys."""
        own = shape[0] > 1

        def at(index: Index, *order: int | None) -> Index:
            return lambda *place: tuple(0 if axis is None else index(*place)[axis] for axis in order)

        match name:
            case "q" | "out" | "d_out" | "d_q":
                return pl.BlockSpec((None, None, size.q, shape[3]), at(q_index, 0, 1, 2, None))
            case "k" | "v" | "d_k" | "d_v":
                return pl.BlockSpec((None, None, size.k, shape[3]), at(k_index, 0, 1, 2, None))
            case "logsumexp" | "delta":
                return pl.BlockSpec((None, None, 1, size.q), at(q_index, 0, 1, None, 2))
            case "q_places" | "q_segments":
                return pl.BlockSpec((None, 1, size.q), at(q_index, 0 if own else None, None, 2))
            case "k_places" | "k_segments":
                return pl.BlockSpec((None, size.k, 1), at(k_index, 0 if own else None, 2, None))
            case "scalars":
                return pl.BlockSpec((None, 1, shape[2]), at(q_index, 1, None, None), memory_space=pltpu.SMEM)
            case "d_scalars":
                return pl.BlockSpec((None, None, None, 1, shape[4]), at(q_index, 0, 1, 2, None, None))
            case "sinks":
                return pl.BlockSpec(memory_space=pltpu.SMEM)
        raise KeyError(name)

    outputs, scratch = shapes
    inputs = _laid({name: x for name, x in arrays.items() if name != "sinks" or "largest" in scratch}, given)
    names = (*inputs, *outputs, *scratch)

    def body(low: Any, high: Any, *refs: Any) -> None:
        kernel(dict(zip(names, refs, strict=True)), place(low, high))

    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs.values()],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=grid,
            in_specs=[spec(name, x.shape) for name, x in inputs.items()],
            out_specs=[spec(name, shape) for name, (shape, _) in outputs.items()],
            scratch_shapes=[pltpu.VMEM(shape, dtype) for shape, dtype in scratch.values()],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=[*["parallel"] * 3, *["arbitrary"] * (len(grid) - 3)],  # type: ignore[list-item]
        ),
        interpret=call.interpret,
        name=f"fused_attention_{name}",
    )(*ends, *inputs.values())


def _laid(arrays: Mapping[str, Array], given: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays as blocks are cut from them."""
    laid: dict[str, Array] = {}
    for name, x in {**arrays, **given}.items():
        match name:
            case "q" | "k" | "v" | "d_out":
                laid[name] = jnp.swapaxes(x, 1, 2)
            case "logsumexp" | "delta":
                laid[name] = x[:, :, None]
            case "scalars" | "q_places" | "q_segments":
                laid[name] = x[:, None]
            case "k_places" | "k_segments":
                laid[name] = x[:, :, None]
            case _:
                laid[name] = x
    return laid


def _reader(refs: Refs) -> Callable[[Any], Array]:
    return lambda index: refs["scalars"][0, index]


def _places(call: Call, refs: Refs, at: Place, size: Any) -> Places:
    rows = at.q * size.q + lax.broadcasted_iota(jnp.int32, (1, size.q), 1)
    columns = at.k * size.k + lax.broadcasted_iota(jnp.int32, (size.k, 1), 0)
    q_segments = refs["q_segments"][...] if "q_segments" in refs else None
    k_segments = refs["k_segments"][...] if "k_segments" in refs else None
    if "q_places" not in refs:
        return Places(rows, columns, rows + call.offset, columns, q_segments, k_segments)
    return Places(rows, columns, refs["q_places"][...], refs["k_places"][...], q_segments, k_segments)
