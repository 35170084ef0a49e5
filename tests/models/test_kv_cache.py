"""Slots: what queries find in a cache against a list that forgets nothing; and whole models against a NumPy forward."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from models import kernels
from models.decoding import decode
from models.decoding.kv_cache import KVCache, Layout
from tests.models.common import build, close, numpy_logits, tiny, tokens

WINDOWS = (3, None, 5)


class ReferenceCache:
    """A cache of one number a token, its own, beside a list of every row's tokens; layers are of WINDOWS."""

    def __init__(self, windows: tuple[int | None, ...], rows: int, capacity: int, *, keep_tokens: bool = False) -> None:
        layout = Layout(((("id", 1, 1),),) * len(windows), windows, "auto", jnp.float32)
        self.cache = KVCache.empty(layout, rows, capacity, keep_tokens=keep_tokens)
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self.count = 0

    def read(self, mask: np.ndarray | None, count: int, *, fresh: bool = False) -> None:
        """Gives `count` tokens to each row, padding where the mask has 0, and compares what each query sees."""
        rows = len(self.rows)
        ids = 100 * np.arange(1, rows + 1)[:, None] + self.count + np.arange(count)
        real = np.ones((rows, count), int) if mask is None else mask
        places = np.array([len(row) for row in self.rows])[:, None] + np.cumsum(real, axis=1) - 1
        given = None if mask is None else (jnp.asarray(np.maximum(places, 0)), jnp.asarray(mask))
        placement = self.cache.place(jnp.asarray(ids), *(given or (None, None)), fresh=fresh)
        arrays = {"id": jnp.asarray(ids, jnp.float32)[:, :, None, None]}
        results = [placement.keep(entry, arrays, jnp.float32) for entry in self.cache.entries]
        for row in range(rows):
            self.rows[row] += [int(i) for i, there in zip(ids[row], real[row], strict=True) if there]
        for window, (_, kept, track) in zip(self.cache.windows, results, strict=True):
            segments = np.ones((rows, count)) if track.segments is None else np.asarray(track.segments)
            at = np.arange(count)[None] if track.positions is None else np.asarray(track.positions)
            at = np.broadcast_to(at, segments.shape)
            for row in range(rows):
                self.compare(row, places[row][real[row] > 0], window, kept["id"][row, :, 0, 0], at[row], segments[row])
        self.placement = placement
        self.cache = dataclasses.replace(placement.cache, entries=tuple(entry for entry, _, _ in results))
        self.count += count

    def compare(self, row: int, queries: Any, window: int | None, kept: Any, at: Any, segments: Any) -> None:
        for query in queries:
            seen = (segments == 1) & (at <= query) & (True if window is None else query - at < window)
            expected = self.rows[row][: query + 1][-(window or query + 1) :]
            assert sorted(np.asarray(kept)[seen].astype(int).tolist()) == expected


def ragged(draw: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Returns a mask of padding anywhere, with a token in each row at least."""
    mask = draw.integers(0, 2, (rows, count))
    mask[:, draw.integers(count)] = 1
    return mask


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("windows", [WINDOWS, (3, 5)], ids=str)
def test_queries_see_their_windows_whatever_the_pieces(seed: int, windows: tuple[int | None, ...]) -> None:
    draw = np.random.default_rng(seed)
    message = ReferenceCache(windows, 3, 40)
    count = int(draw.integers(1, 9))
    message.read(ragged(draw, 3, count) if seed % 2 else None, count, fresh=True)
    for _ in range(7):
        count = int(draw.choice([1, 1, 2, 4]))
        message.read(ragged(draw, 3, count) if draw.integers(2) else None, count)
    assert message.cache.sizes == tuple(window or 40 for window in windows)
    assert message.cache.next.tolist() == [len(row) for row in message.rows]


def test_layers_that_all_roll_never_fill() -> None:
    message = ReferenceCache((3, 4), 2, 4)
    assert not message.cache.bounded
    for count in (5, 1, 1, 6, 1):
        message.read(None, count)
    bounded = ReferenceCache((3, 5), 2, 4)
    bounded.read(None, 4)
    with pytest.raises(ValueError, match=r"full: 4 \+ 1 slots, of capacity 4"):
        bounded.read(None, 1)


def test_a_growing_cache_begins_to_roll() -> None:
    """Windows of 3, 6 and none: at capacity 4 only the first rolls, at 8 the second does too. One row pads inside."""
    message = ReferenceCache((3, 6, None), 2, 4)
    message.read(np.array([[1, 1, 1], [1, 0, 1]]), 3, fresh=True)
    message.cache = message.cache.grown(8).grown(8)
    assert message.cache.sizes == (3, 6, 8)
    for _ in range(4):
        message.read(None, 1)
    message.cache = message.cache.grown(30)
    for count in (1, 5, 1, 1):
        message.read(None, count)
    assert set(message.cache.tracks) == {3, 6, 30}


def test_tokens_that_are_kept_fill_their_slots_again() -> None:
    """Where frequencies change, all keys are written anew: slots then hold what they held."""
    draw = np.random.default_rng(1)
    message = ReferenceCache((3, 6), 3, 20, keep_tokens=True)
    assert message.cache.bounded and set(message.cache.tracks) == {3, 6, 20}
    for count in (4, 1, 5, 1, 1):
        message.read(ragged(draw, 3, count) if count > 1 else None, count)
        placement = message.placement.again()
        whole = {"id": message.cache.tokens.astype(jnp.float32)[:, :, None, None]}
        for size, entry in zip(message.cache.sizes, message.cache.entries, strict=True):
            again, _, _ = placement.keep(jax.tree.map(jnp.zeros_like, entry), whole, jnp.float32)
            there = message.cache.tracks[size].segments != 0
            np.testing.assert_array_equal(again["id"][..., 0] * there, entry["id"][..., 0] * there)


def quantise(storage: str) -> Any:
    """Returns what NumPy makes of a vector [K] that is stored and read back."""

    def int8(x: np.ndarray) -> np.ndarray:
        step = np.abs(x).max() / 127
        return np.round(x / step) * step

    def fp8(x: np.ndarray) -> np.ndarray:
        step = np.abs(x).max() / 448
        return (x / step).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * step

    return {"auto": lambda x: x, "int8": int8, "fp8": fp8}[storage]


@pytest.mark.parametrize("storage", ["auto", "int8", "fp8"])
def test_a_model_in_any_pieces_is_the_forward_over_what_is_stored(storage: str) -> None:
    """A window of 4 and none; a prompt of 7, longer than that, or 3 + 4; then steps. GQA, and row 1 padded.

    The reference is a float64 forward in NumPy whose keys and values were rounded alike, vector by vector.
    """
    config = tiny(attention__window_pattern=(4, 0), attention__kv_storage=storage)
    model, ids = build(config), tokens(2, 11)
    segments = jnp.ones((2, 11), jnp.int32).at[1, :2].set(0)
    places = jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0)
    graphdef, params = nnx.split(model)

    def read(params: Any, cache: KVCache, *args: Any) -> tuple[jax.Array, KVCache]:
        return nnx.merge(graphdef, params)(*args, cache=cache)

    pieces = jax.jit(read)
    cache, result = model.cache(2, 11), []
    for start, size in ((0, 3), (3, 4), (7, 1), (8, 1), (9, 1), (10, 1)):
        part = (x[:, start : start + size] for x in (ids, places, segments))
        logits, cache = pieces(params, cache, *part)
        result.append(logits)
    got = jnp.concatenate(result, axis=1)
    rounded = quantise(storage)
    close(got[0], numpy_logits(config, model, np.asarray(ids[0]), rounded), 1e-4)
    close(got[1, 2:], numpy_logits(config, model, np.asarray(ids[1, 2:]), rounded), 1e-4)
    if storage != "auto":
        assert np.abs(got[0] - numpy_logits(config, model, np.asarray(ids[0]))).max() > 1e-3  # rounding is seen
    assert cache.sizes == (4, 11)
    if storage == "int8":
        logits, cache = decode.prefill(graphdef, params, model.cache(2, 11), ids[:, :7], places[:, :7], segments[:, :7])
        close(logits, got[:, 6], 2e-5)
        for t in range(7, 11):
            logits, cache = decode.step(graphdef, params, cache, ids[:, t])
            close(logits, got[:, t], 2e-5)
        assert {entry["k"].codes.dtype.name for entry in cache.entries} == {"int8"}


@pytest.mark.parametrize("storage", ["int8", "fp8"])
def test_attention_over_8_bits_is_off_by_what_half_a_step_allows(storage: str) -> None:
    """Keys off by dk move a score by |q|_1 dk scale = ds at most, so weights by a factor of exp(2 ds) at most, and

    the output by (exp(2 ds) - 1) max|v| + dv, where dk and dv are half a step of the coarsest token.
    """
    draw = np.random.default_rng(0)
    q, k, v = (jnp.asarray(draw.standard_normal((2, 1 if i == 0 else 24, 2, 8)), jnp.float32) for i in range(3))
    layout = Layout(((("k", 2, 8), ("v", 2, 8)),), (None,), storage, jnp.float32)
    placement = KVCache.empty(layout, 2, 24, keep_tokens=False).place(jnp.zeros((2, 24), jnp.int32), fresh=True)
    _, kept, _ = placement.keep(placement.cache.entries[0], {"k": k, "v": v}, jnp.float32)
    exact, result = (kernels.attend(q, *pair) for pair in ((k, v), (kept["k"], kept["v"])))
    half = 1 / 254 if storage == "int8" else 1 / 16
    dk, dv = (half * float(jnp.abs(x).max()) for x in (k, v))
    ds = np.asarray(jnp.abs(q).sum(-1, keepdims=True)) * dk * 8**-0.5
    off = np.abs(np.asarray(result - exact))
    assert (off <= np.expm1(2 * ds) * float(jnp.abs(v).max()) + dv).all()
    assert off.max() > 1e-4
