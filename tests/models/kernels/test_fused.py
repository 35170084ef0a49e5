"""The fused kernel, interpreted, against the definition in float64: every scheme, every mask, and what it skips."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models import kernels
from models.kernels.fused import Tiles, fused
from models.kernels.fused.call import Call, bounds, padded_places
from models.kernels.fused.tiles import LANES, Size, default, fitted, read, tiles_for
from models.kernels.kernel import Scoring
from models.kernels.masks import Masking
from models.platform import compiling_for
from models.positions import KINDS, build, has_head_bias, places_of
from models.positions.head_bias import HeadBias
from tests.models.common import tiny
from tests.models.kernels import oracle
from tests.models.kernels.oracle import CASES, Case, packed
from tests.switches import written
from training.devices.compile_only import lower

BIASED = [kind for kind in KINDS if "bias" in places_of(kind)]
SMALL = Tiles(Size(8, 8), Size(8, 8), Size(8, 8))
UNLIKE = Tiles(Size(16, 8), Size(8, 16), Size(4, 8))
QUICK_SCHEMES = {("fire", "gpu"), ("t5", "tpu")}
QUICK_CASES = {("cache", "gpu"), ("sinks, padding", "tpu")}
PLATFORMS = ("gpu", "tpu")

# All at once: documents, padding at both ends, a window, a soft cap, sinks, keys shared by heads, odd lengths.
EVERYTHING = packed((9, 13, -3), (-4, 2, 19), window=11, soft_cap=2.0, sinks=True, H=4, G=2)


def quick(names: list[str], few: set[tuple[str, str]]) -> list[Any]:
    """Returns (name, platform) of all; all but `few` are slow."""
    pairs = [(name, platform) for name in names for platform in PLATFORMS]
    return [pytest.param(*pair, marks=[] if pair in few else pytest.mark.slow) for pair in pairs]


def sine(slope: Any) -> HeadBias:
    """The oracle's own bias, by head."""
    return HeadBias(lambda own, q, k: jnp.sin(own["slope"] * (q - k).astype(jnp.float32) / 4), {"slope": slope})


def masking_of(case: Case) -> Masking:
    return Masking(case.T, case.S, case.causal, case.window, case.aligned, **case.options())


def call(case: Case, tiles: Tiles, q: Any, k: Any, v: Any, sinks: Any, bias: Any) -> jax.Array:
    scoring = Scoring(case.scale or case.K**-0.5, bias, case.soft_cap, sinks if case.sinks else None)
    return fused(q, k, v, masking_of(case), scoring, tiles=tiles)


def same(found: Any, wanted: Any, names: Any) -> None:
    for name, right, got in zip(names, wanted, found, strict=True):
        np.testing.assert_allclose(got, right, rtol=5e-5, atol=5e-5, err_msg=name)


@pytest.mark.parametrize(("name", "platform"), quick(list(CASES), QUICK_CASES))
def test_equals_the_definition(name: str, platform: str) -> None:
    case = CASES[name]
    arrays = case.arrays()

    def both(q: Any, k: Any, v: Any, slope: Any, sinks: Any, d_out: Any) -> Any:
        def out(q: Any, k: Any, v: Any, slope: Any, sinks: Any) -> Any:
            return call(case, UNLIKE, q, k, v, sinks, sine(slope) if case.bias else None)

        out, pull = jax.vjp(out, q, k, v, slope, sinks)
        return out, *pull(d_out)

    with kernels.interpreting(platform):
        found = jax.jit(both)(*(jnp.asarray(x, jnp.float32) for x in arrays.values()))
    same(found, oracle.attention(case, **arrays), oracle.Result._fields)
    hidden, unseen = ~case.mask().any(2), ~case.mask().any(1)
    assert not np.asarray(found[0])[hidden].any() and not np.asarray(found[1])[hidden].any()
    assert not np.asarray(found[2])[unseen].any() and not np.asarray(found[3])[unseen].any()


def scheme_of(kind: str) -> tuple[Any, Any, Any]:
    """Returns (config.model, the scheme's graph, its parameters moved from their first values) of one layer."""
    config = tiny(position__kind=kind, position__t5__buckets=8, position__t5__max_distance=12, position__fire__hidden=3,
                  position__fire__threshold=6.0)  # fmt: skip
    scheme = build(config, rngs=nnx.Rngs(0)).layer(0)
    if not isinstance(scheme, nnx.Module):
        return config, scheme, {}
    graph, state = nnx.split(scheme)
    draw = np.random.default_rng(3).standard_normal
    return config, graph, jax.tree.map(lambda x: x + 0.3 * np.abs(draw(x.shape)).astype(np.float32), state)


@pytest.mark.parametrize(("kind", "platform"), quick(BIASED, QUICK_SCHEMES))
def test_every_scheme_equals_the_definition(kind: str, platform: str) -> None:
    """Output and gradients, of the scheme's own parameters too, with every mask and switch at once."""
    case, (config, graph, state) = EVERYTHING, scheme_of(kind)
    arrays = {name: x for name, x in case.arrays().items() if name != "slope"}

    def both(q: Any, k: Any, v: Any, sinks: Any, d_out: Any, state: Any) -> Any:
        def out(q: Any, k: Any, v: Any, sinks: Any, state: Any) -> Any:
            scheme = nnx.merge(graph, state) if state else graph
            return call(case, SMALL, q, k, v, sinks, scheme.bias())

        out, pull = jax.vjp(out, q, k, v, sinks, state)
        return out, *pull(d_out)

    with kernels.interpreting(platform):
        *found, d_state = jax.jit(both)(*(jnp.asarray(x, jnp.float32) for x in arrays.values()), state)
    own = {path[0]: np.asarray(leaf, np.float64) for path, leaf in nnx.to_flat_state(state)} if state else {}

    def defined(own: Any) -> oracle.Result:
        places = [np.array(case.row("q_positions", b)) for b in range(case.B)]
        added = np.stack([written.bias(config, kind, own, at, at) for at in places])
        return oracle.attention(case, **arrays, slope=np.zeros(case.H), added=added)

    wanted = defined(own)
    same(found, [*wanted[:4], wanted.dsinks], ("out", "dq", "dk", "dv", "dsinks"))
    for path, leaf in nnx.to_flat_state(d_state) if state else ():
        right = np.zeros_like(own[path[0]])
        for at in np.ndindex(right.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {**own, path[0]: own[path[0]].copy()}
                moved[path[0]][at] += step
                ends.append((defined(moved).out * arrays["d_out"]).sum())
            right[at] = (ends[0] - ends[1]) / 2e-5
        assert np.abs(right).max() > 1e-3
        np.testing.assert_allclose(leaf, right, rtol=2e-4, atol=2e-4, err_msg=str(path))


@pytest.mark.parametrize("kind", BIASED)
def test_a_bias_by_head_is_the_bias_of_all_heads(kind: str) -> None:
    _, graph, state = scheme_of(kind)
    scheme = nnx.merge(graph, state) if state else graph
    bias = scheme.bias()
    assert isinstance(bias, HeadBias) and has_head_bias(kind) and bias.num_heads == 4
    places = jnp.asarray([[0, 1, 5, 40], [3, 3, 90, 7]])
    derived = jax.jit(dataclasses.replace(bias, whole=None))(places, places[:, :3])
    np.testing.assert_allclose(derived, bias(places, places[:, :3]), rtol=2e-6, atol=2e-6)
    some = bias.of_heads(1, 2)
    np.testing.assert_allclose(some(places, places), bias(places, places)[:, 1:3], rtol=1e-6)
    derived = dataclasses.replace(some, whole=None)(places, places)
    np.testing.assert_allclose(derived, bias(places, places)[:, 1:3], rtol=2e-6, atol=2e-6)


def test_blocks_that_count_are_those_that_are_not_hidden() -> None:
    """The bounds of both passes are exact for causal order, windows, documents and padding at the ends."""
    for case in (CASES["window"], EVERYTHING, CASES["cache, window"]):
        masking, size = masking_of(case), Size(4, 4)
        shared = dict(soft_cap=None, scale=1.0, layout=None, platform="gpu", interpret=True)
        asked = Call.of(masking, tiles=Tiles(size, size, size), **shared)
        T, S = asked.padded
        mask = np.pad(case.mask(), ((0, 0), (0, T - case.T), (0, S - case.S)))
        some = mask.reshape(case.B, T // 4, 4, S // 4, 4).any((2, 4))
        found = jax.jit(lambda: bounds(asked, padded_places(asked, masking), 4, 4))()  # noqa: B023
        first, last, q_first, q_last = (np.asarray(x) for x in found)
        for b in range(case.B):
            for part, low, high in ((some[b], first, last), (some[b].T, q_first, q_last)):
                for i, row in enumerate(part):
                    given = low[b % len(low), i], high[b % len(high), i]
                    seen = np.flatnonzero(row)
                    if len(seen):
                        assert given == (seen[0], seen[-1] + 1), (case, b, i)
                    else:
                        assert given[1] <= given[0] + 1, (case, b, i)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # jax 0.12
@pytest.mark.parametrize("platform", PLATFORMS)
def test_lowers_for_an_accelerator(platform: str) -> None:
    """Triton and Mosaic take the three kernels, with nothing as large as the scores beside them."""
    _, graph, state = scheme_of("fire")
    rows = jnp.arange(1001)[None]
    ids = jnp.ones((1, 1001), jnp.int32)
    shapes = [jax.ShapeDtypeStruct((2, 1001, heads, 32), jnp.bfloat16) for heads in (4, 2, 2)]

    def loss(q: Any, k: Any, v: Any, state: Any) -> Any:
        given = dict(q_segments=ids, kv_segments=ids, q_positions=rows, kv_positions=rows, window=300, soft_cap=9.0)
        out = kernels.attend(q, k, v, bias=nnx.merge(graph, state).bias(), platform=platform, **given)
        return jnp.sum(out.astype(jnp.float32))

    with compiling_for(platform):
        lowered = lower(jax.jit(jax.grad(loss, (0, 1, 2, 3))), *shapes, state, platform=platform)
    text = lowered.as_text(debug_info=True)
    assert "attention_fused" in text
    assert set(re.findall(r"fused_attention_(\w+)", text)) >= {"forward", "backward_queries", "backward_keys"}
    shapes_in = re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
    largest = max(math.prod(int(n) for n in shape.split("x")[:-1]) for shape in shapes_in)
    assert largest < 2 * 4 * 1001 * 1001 // 4, largest


def test_sizes_fit_the_lengths() -> None:
    assert fitted("gpu", Size(128, 64), 21, 1) == Size(32, 16)
    assert fitted("tpu", Size(512, 256), 300, 8192) == Size(384, 256)
    for platform in PLATFORMS:
        for dtype in (jnp.float32, jnp.bfloat16):
            for width in (32, 64, 128, 256):
                tiles = tiles_for(platform, "", dtype, width, 8192, 8192)
                assert tiles == default(platform, dtype, width)
                assert platform == "gpu" or all(size.q % LANES == size.k % LANES == 0 for size in
                                                (tiles.forward, tiles.queries, tiles.keys))  # fmt: skip
    with pytest.raises(ValueError, match="not a table of block sizes"):
        read({"entries": [{"device": "H100"}]})


def test_a_bias_that_is_not_by_head_is_refused() -> None:
    zeros = jnp.zeros((1, 4, 1, 8))
    with kernels.interpreting("gpu"), pytest.raises(kernels.choice.ConfigError, match="defined by head"):
        kernels.attend(zeros, zeros, zeros, kernel="fused", bias=lambda q, k: jnp.zeros((1, 1, 4, 4)))
    with pytest.raises(NotImplementedError):
        fused(zeros, zeros, zeros, Masking(4, 4), Scoring(1.0, bias=lambda q, k: jnp.zeros((1, 1, 4, 4))))
