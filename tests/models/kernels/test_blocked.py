"""What the blocked core promises beside its numbers: what it skips, what it keeps, how its code grows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kernels import passes
from models.kernels.block import Job
from models.kernels.blocked import blocked
from models.kernels.kernel import Scoring
from models.kernels.masks import Masking
from tests.models.common import normal
from tests.models.kernels.oracle import Case


def gradient(length: int, block: int | None = None, *, window: int | None = None, packed: bool = False) -> Any:
    """The jitted gradient of q, k and v [1, length, 2, 8], and the shapes to give it."""
    segments = jnp.ones((1, length), jnp.int32) if packed else None
    masking = Masking(length, length, window=window, q_segments=segments, kv_segments=segments)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(blocked(q, k, v, masking, Scoring(1.0), block=block) ** 2)

    shape = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
    return jax.jit(jax.grad(loss, (0, 1, 2))), (shape, shape, shape)


def temporary(length: int) -> int:
    function, shapes = gradient(length, 64)
    return function.lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_length() -> None:
    small, large = temporary(1024), temporary(2048)
    assert large <= 2.2 * small
    assert large < 2048 * 2048 * 4  # less than a single head's scores


@pytest.mark.parametrize("packed", [False, True])
def test_code_does_not_grow_with_length(packed: bool) -> None:
    def size(length: int) -> int:
        function, shapes = gradient(length, 64, packed=packed)
        return len(str(function.trace(*shapes).jaxpr))

    assert size(16384) < 1.05 * size(512)


def column_blocks(job: Job, rows: tuple[int, int]) -> list[tuple[int, bool]]:
    """The first key of each block met, and whether it is masked."""
    runs = passes.column_runs(job, rows)
    return [(index * job.block_k, masked) for first, last, masked in runs for index in range(first, last)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Case, Job]:
    T, S = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    window = draw(st.one_of(st.none(), st.integers(1, 45)))
    causal = window is not None or draw(st.booleans())
    block = draw(st.sampled_from([1, 3, 8, 16, 64]))
    case = Case(T=T, S=S, H=1, G=1, K=1, B=1, causal=causal, window=window)
    masking = Masking(T, S, causal, window)
    q, k = np.zeros((1, T, 1, 1), np.float32), np.zeros((1, S, 1, 1), np.float32)
    job = Job.of(q, k, masking, soft_cap=None, scale=1.0, block_q=min(block, T), block_k=min(block, S))  # type: ignore[arg-type]
    return case, job


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_skips_what_no_row_sees_and_masks_what_some_rows_do_not(drawn: tuple[Case, Job]) -> None:
    """Every visible pair is met once; a block that is not masked holds visible pairs alone; an empty one is not met."""
    case, job = drawn
    mask = case.mask()[0]
    for first in range(0, job.T, job.block_q):
        met = np.zeros(job.S, int)
        seen = mask[first : first + job.block_q]
        for column, masked in column_blocks(job, (first, job.block_q)):
            here = slice(column, column + job.block_k)
            met[here] += 1
            assert masked or seen[:, here].all()
            # A ragged last block of queries reaches rows that do not exist, and they may see a block more.
            assert seen[:, here].any() or first + job.block_q > job.T
        assert met.max(initial=0) <= 1
        assert not seen[:, met == 0].any()


def test_whole_blocks_are_not_masked() -> None:
    case = Case(T=64, S=64)
    masking = Masking(case.T, case.S)
    zeros = np.zeros((1, 64, 1, 1), np.float32)
    job = Job.of(zeros, zeros, masking, soft_cap=None, scale=1.0, block_q=16, block_k=16)  # type: ignore[arg-type]
    kinds = [[masked for _, masked in column_blocks(job, (first, 16))] for first in range(0, 64, 16)]
    assert kinds == [[True], [False, True], [False, False, True], [False, False, False, True]]


def test_blocks_that_segments_hide_are_skipped() -> None:
    """A NaN in a document hidden from all others cannot be met: its blocks are not computed for them."""
    length = 64
    segments = jnp.asarray([[1] * 32 + [2] * 32])
    masking = Masking(length, length, q_segments=segments, kv_segments=segments)
    q, k, v = (normal((1, length, 1, 4), seed) for seed in range(3))
    v = v.at[:, :32].set(jnp.nan)
    function = functools.partial(blocked, masking=masking, scoring=Scoring(1.0), block=16)
    out = jax.jit(function)(q, k, v)
    assert np.isnan(out[:, :32]).all() and np.isfinite(out[:, 32:]).all()


def test_keeps_the_inputs_the_output_and_a_number_a_row() -> None:
    """The backward pass is given nothing of the size of the scores."""
    length, heads, width = 512, 2, 8
    shape = jax.ShapeDtypeStruct((1, length, heads, width), jnp.float32)

    def out(q: Any, k: Any, v: Any) -> Any:
        masking = Masking(length, length)
        return blocked(q, k, v, masking, Scoring(1.0), block=64)

    saved = jax.eval_shape(lambda *given: jax.vjp(out, *given)[1], shape, shape, shape)
    assert sum(leaf.size for leaf in jax.tree.leaves(saved)) <= 4 * length * heads * width + length * heads
