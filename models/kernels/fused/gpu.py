"""The fused kernel's passes for GPUs, in Pallas through Triton: one program a block, a loop over what it meets.

Queries are down and keys across. Arrays stay [B, T, H, K], as the model has them: a block is read by its strides. No
key is repeated: the programs of a group's query heads read the same keys, and the pass by blocks of keys loops over
the heads.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.kernels.fused.call import HIDDEN, Call, Places, bounds, derivative, dot, scored
from models.kernels.fused.tiles import Size

Refs = dict[str, Any]


def forward(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the output [B, T, H, V] and the logsumexp [B, H, T], at padded lengths; inf where nothing is seen."""
    size = call.tiles.forward
    low, high, _, _ = bounds(call, given, size.q, size.k)
    (B, T, H, _), V = arrays["q"].shape, arrays["v"].shape[3]

    def kernel(refs: Refs) -> None:
        q = refs["q"][...]
        rows = _indices(_first(size.q), size.q, 1)

        def step(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            largest, total, out = carry
            span = _span(j * size.k, size.k)
            products = dot(q, refs["k"][span, :], (1, 1))
            scores = scored(call, products, _places(call, refs, rows, j * size.k, size.k), _reader(refs)).values
            grown = jnp.maximum(largest, jnp.max(scores, axis=1))
            safe = jnp.where(grown == HIDDEN, 0.0, grown)
            weights = jnp.exp(scores - safe[:, None])
            shrink = jnp.exp(largest - safe)
            more = dot(weights.astype(refs["v"].dtype), refs["v"][span, :], (1, 0))
            return grown, total * shrink + jnp.sum(weights, axis=1), out * shrink[:, None] + more

        sink = refs["sinks"][...] if "sinks" in refs else None
        largest = jnp.full((size.q,), HIDDEN if sink is None else sink, jnp.float32)
        total = jnp.full((size.q,), 0.0 if sink is None else 1.0, jnp.float32)
        start = largest, total, jnp.zeros((size.q, V), jnp.float32)
        largest, total, out = lax.fori_loop(refs["low"][...], refs["high"][...], step, start)
        seen = total > 0
        total = jnp.where(seen, total, 1.0)
        refs["out"][...] = (out / total[:, None]).astype(refs["out"].dtype)
        refs["logsumexp"][...] = jnp.where(seen, largest + jnp.log(total), jnp.inf)

    inputs = {**arrays, **given, "low": low, "high": high}
    outputs = {"out": ((B, T, H, V), arrays["q"].dtype), "logsumexp": ((B, H, T), jnp.float32)}
    group = H // arrays["k"].shape[2]
    out, logsumexp = _call(call, "forward", kernel, size, inputs, outputs, (T // size.q, H, B), by_query(size.q, group))
    return out, logsumexp


def by_query(size: int, group: int) -> Callable[[str, tuple[int, ...]], Any]:
    """Returns the blocks of a program (block of queries, head, row): its own queries, and all keys of its group."""
    from jax.experimental import pallas as pl

    def spec(name: str, shape: tuple[int, ...]) -> Any:
        B = shape[0]
        match name:
            case "q" | "out" | "d_out" | "d_q":
                return pl.BlockSpec((None, size, None, shape[3]), lambda i, h, b: (b, i, h, 0))
            case "k" | "v":
                return pl.BlockSpec((None, shape[1], None, shape[3]), lambda i, h, b: (b, 0, h // group, 0))
            case "logsumexp" | "delta":
                return pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, i))
            case "q_places" | "q_segments":
                return pl.BlockSpec((None, size), lambda i, h, b: (b if B > 1 else 0, i))
            case "k_places" | "k_segments":
                return pl.BlockSpec((None, shape[1]), lambda i, h, b: (b if B > 1 else 0, 0))
            case "scalars":
                return pl.BlockSpec((None, shape[1]), lambda i, h, b: (h, 0))
            case "d_scalars":
                return pl.BlockSpec((None, None, 1, shape[3]), lambda i, h, b: (b, h, i, 0))
            case "sinks":
                return pl.BlockSpec((None,), lambda i, h, b: (h,))
            case "low" | "high":
                return pl.BlockSpec((None, None), lambda i, h, b: (b if B > 1 else 0, i))
        raise KeyError(name)

    return spec


def by_key(size: int, group: int) -> Callable[[str, tuple[int, ...]], Any]:
    """Returns the blocks of a program (block of keys, key/value head, row): its keys, and all queries of its group."""
    from jax.experimental import pallas as pl

    def spec(name: str, shape: tuple[int, ...]) -> Any:
        B = shape[0]
        match name:
            case "k" | "v" | "d_k" | "d_v":
                return pl.BlockSpec((None, size, None, shape[3]), lambda j, g, b: (b, j, g, 0))
            case "q" | "d_out":
                return pl.BlockSpec((None, shape[1], group, shape[3]), lambda j, g, b: (b, 0, g, 0))
            case "logsumexp" | "delta":
                return pl.BlockSpec((None, group, shape[2]), lambda j, g, b: (b, g, 0))
            case "k_places" | "k_segments":
                return pl.BlockSpec((None, size), lambda j, g, b: (b if B > 1 else 0, j))
            case "q_places" | "q_segments":
                return pl.BlockSpec((None, shape[1]), lambda j, g, b: (b if B > 1 else 0, 0))
            case "scalars":
                return pl.BlockSpec((group, shape[1]), lambda j, g, b: (g, 0))
            case "low" | "high":
                return pl.BlockSpec((None, None), lambda j, g, b: (b if B > 1 else 0, j))
        raise KeyError(name)

    return spec


def backward_queries(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array | None]:
    """Returns the gradients of the queries [B, T, H, K] and of the bias's scalars [H, N] (None: nothing is learned)."""
    size, layout = call.tiles.queries, call.layout
    low, high, _, _ = bounds(call, given, size.q, size.k)
    B, T, H, K = arrays["q"].shape
    learned = layout is not None and layout.learned

    def kernel(refs: Refs) -> None:
        q, d_out = refs["q"][...], refs["d_out"][...]
        logsumexp, delta = refs["logsumexp"][...][:, None], refs["delta"][...][:, None]
        rows = _indices(_first(size.q), size.q, 1)
        read = _reader(refs)

        def step(j: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            d_q, d_scalars = carry
            span = _span(j * size.k, size.k)
            k = refs["k"][span, :]
            places = _places(call, refs, rows, j * size.k, size.k)
            scores = scored(call, dot(q, k, (1, 1)), places, read)
            weights = jnp.exp(scores.values - logsumexp)
            d_scores = weights * (dot(d_out, refs["v"][span, :], (1, 1)) - delta)
            if learned and layout is not None:
                d_scalars = layout.gradient(read, places.q, places.k, d_scores, d_scalars)
            d_products = derivative(scores, d_scores).astype(q.dtype)
            return d_q + dot(d_products, k, (1, 0)), d_scalars

        start = jnp.zeros((size.q, K), jnp.float32), jnp.zeros((1, N), jnp.float32) if learned else 0
        d_q, d_scalars = lax.fori_loop(refs["low"][...], refs["high"][...], step, start)
        refs["d_q"][...] = (call.scale * d_q).astype(refs["d_q"].dtype)
        if learned:
            refs["d_scalars"][...] = d_scalars

    N = arrays["scalars"].shape[1] if learned else 0
    inputs = {name: x for name, x in arrays.items() if name != "sinks"} | {**given, "low": low, "high": high}
    outputs: dict[str, Any] = {"d_q": ((B, T, H, K), arrays["q"].dtype)}
    if learned:
        outputs["d_scalars"] = ((B, H, T // size.q, N), jnp.float32)
    group = H // arrays["k"].shape[2]
    grid = (T // size.q, H, B)
    found = _call(call, "backward_queries", kernel, size, inputs, outputs, grid, by_query(size.q, group))
    return found[0], jnp.sum(found[1], axis=(0, 2)) if learned else None


def backward_keys(call: Call, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array]:
    """Returns the gradients of the keys [B, S, G, K] and the values [B, S, G, V]."""
    size = call.tiles.keys
    _, _, low, high = bounds(call, given, size.q, size.k)
    (B, S, G, K), V = arrays["k"].shape, arrays["v"].shape[3]
    group = arrays["q"].shape[2] // G

    def kernel(refs: Refs) -> None:
        k, v = refs["k"][...], refs["v"][...]
        columns = _indices(_first(size.k), size.k, 0)

        def head(r: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            read = _reader(refs, r)

            def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
                d_k, d_v = carry
                span = _span(i * size.q, size.q)
                q, d_out = refs["q"][span, r, :], refs["d_out"][span, r, :]
                places = _places_of_queries(call, refs, columns, i * size.q, size.q)
                scores = scored(call, dot(q, k, (1, 1)), places, read)
                weights = jnp.exp(scores.values - refs["logsumexp"][r, span][:, None])
                d_v = d_v + dot(weights.astype(d_out.dtype), d_out, (0, 0))
                d_scores = weights * (dot(d_out, v, (1, 1)) - refs["delta"][r, span][:, None])
                d_products = derivative(scores, d_scores).astype(q.dtype)
                return d_k + dot(d_products, q, (0, 0)), d_v

            return lax.fori_loop(refs["low"][...], refs["high"][...], step, carry)

        start = jnp.zeros((size.k, K), jnp.float32), jnp.zeros((size.k, V), jnp.float32)
        d_k, d_v = lax.fori_loop(0, group, head, start)
        refs["d_k"][...] = (call.scale * d_k).astype(refs["d_k"].dtype)
        refs["d_v"][...] = d_v.astype(refs["d_v"].dtype)

    inputs = {name: x for name, x in arrays.items() if name != "sinks"} | {**given, "low": low, "high": high}
    outputs = {"d_k": ((B, S, G, K), arrays["k"].dtype), "d_v": ((B, S, G, V), arrays["v"].dtype)}
    d_k, d_v = _call(call, "backward_keys", kernel, size, inputs, outputs, (S // size.k, G, B), by_key(size.k, group))
    return d_k, d_v


def _call(
    call: Call,
    name: str,
    kernel: Callable[[Refs], None],
    size: Size,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, tuple[tuple[int, ...], Any]],
    grid: tuple[int, ...],
    spec: Callable[[str, tuple[int, ...]], Any],
) -> list[Array]:
    """Runs a kernel whose references go by the names of its inputs and outputs."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    names = (*inputs, *outputs)
    return pl.pallas_call(
        lambda *refs: kernel(dict(zip(names, refs, strict=True))),
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs.values()],
        grid=grid,
        in_specs=[spec(name, x.shape) for name, x in inputs.items()],
        out_specs=[spec(name, shape) for name, (shape, _) in outputs.items()],
        compiler_params=triton.CompilerParams(num_warps=size.warps, num_stages=size.stages),
        interpret=call.interpret,
        name=f"fused_attention_{name}",
    )(*inputs.values())


def _first(size: int) -> Any:
    """Returns the first row, or column, of the program's own block."""
    from jax.experimental import pallas as pl

    return pl.program_id(0) * size


def _span(first: Any, size: int) -> Any:
    from jax.experimental import pallas as pl

    return pl.ds(first, size)


def _indices(first: Any, size: int, axis: int) -> Array:
    """Returns first, first + 1, ..., with a new axis: [size, 1] or [1, size]."""
    return jnp.expand_dims(first + lax.broadcasted_iota(jnp.int32, (size,), 0), axis)


def _reader(refs: Refs, head: Any = None) -> Callable[[Any], Array]:
    """Returns what reads a number of the program's head, or of one of its group's."""
    return lambda index: refs["scalars"][index] if head is None else refs["scalars"][head, index]


def _places(call: Call, refs: Refs, rows: Array, first: Any, size: int) -> Places:
    """Returns the places of the program's queries and of a block of keys."""
    columns, span = _indices(first, size, 0), _span(first, size)
    q_segments = refs["q_segments"][...][:, None] if "q_segments" in refs else None
    k_segments = refs["k_segments"][span][None, :] if "k_segments" in refs else None
    if "q_places" not in refs:
        return Places(rows, columns, rows + call.offset, columns, q_segments, k_segments)
    return Places(
        rows, columns, refs["q_places"][...][:, None], refs["k_places"][span][None, :], q_segments, k_segments
    )


def _places_of_queries(call: Call, refs: Refs, columns: Array, first: Any, size: int) -> Places:
    """Returns the places of a block of queries and of the program's keys."""
    rows, span = _indices(first, size, 1), _span(first, size)
    q_segments = refs["q_segments"][span][:, None] if "q_segments" in refs else None
    k_segments = refs["k_segments"][...][None, :] if "k_segments" in refs else None
    if "q_places" not in refs:
        return Places(rows, columns, rows + call.offset, columns, q_segments, k_segments)
    return Places(
        rows, columns, refs["q_places"][span][:, None], refs["k_places"][...][None, :], q_segments, k_segments
    )
