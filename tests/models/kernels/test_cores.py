"""Every core against the definition in float64: output and gradients of q, k, v and the bias's own parameters."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.kernels.blocked import blocked
from models.kernels.kernel import Scoring
from models.kernels.masks import Masking
from models.kernels.reference import reference
from models.kernels.xla import xla
from tests.models.kernels import oracle
from tests.models.kernels.oracle import CASES, Case

CORES = {
    "reference": reference,
    "xla": xla,
    "blocked": blocked,  # one block of queries at these lengths
    "blocks of 8": functools.partial(blocked, block=8),  # so few that they are written out
    "blocks of 4": functools.partial(blocked, block=4),  # so many that loops run over them
}


def call(core: Callable[..., jax.Array], case: Case, q: Any, k: Any, v: Any, slope: Any, sinks: Any) -> jax.Array:
    masking = Masking(case.T, case.S, case.causal, case.window, case.aligned, **case.options())
    bias = (lambda *places: oracle.bias_of(slope, *places, jnp.sin)) if case.bias else None
    scale = case.K**-0.5 if case.scale is None else case.scale
    return core(q, k, v, masking, Scoring(scale, bias, case.soft_cap, sinks if case.sinks else None))


def run(core: Callable[..., jax.Array], case: Case, arrays: dict[str, np.ndarray], dtype: Any = jnp.float32) -> Any:
    """Returns the output and the gradients, compiled in haste."""

    def both(q: Any, k: Any, v: Any, slope: Any, sinks: Any, d_out: Any) -> Any:
        out, pull = jax.vjp(functools.partial(call, core, case), q, k, v, slope, sinks)
        return out, *pull(d_out)

    given = [jnp.asarray(arrays[name], jnp.float32 if name in ("slope", "sinks") else dtype) for name in arrays]
    return oracle.Result(*jax.jit(both)(*given))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_definition(case: str, core: str) -> None:
    if core == "xla" and CASES[case].soft_cap is not None:
        pytest.skip("jax.nn has no soft cap")
    arrays = CASES[case].arrays()
    expected = oracle.attention(CASES[case], **arrays)
    result = run(CORES[core], CASES[case], arrays)
    for name, right, got in zip(expected._fields, expected, result, strict=True):
        np.testing.assert_allclose(got, right, rtol=5e-5, atol=5e-5, err_msg=name)
    mask = CASES[case].mask()
    hidden = ~mask.any(2)
    assert not np.asarray(result.out)[hidden].any() and not np.asarray(result.dq)[hidden].any()
    unseen = ~mask.any(1)
    assert not np.asarray(result.dk)[unseen].any() and not np.asarray(result.dv)[unseen].any()


@pytest.mark.parametrize("core", CORES)
def test_bfloat16_rounds_the_ends_and_not_the_middle(core: str) -> None:
    case = Case(K=16, V=12, bias=True, sinks=True)
    arrays = {
        name: np.asarray(jnp.asarray(x, jnp.float32 if name in ("slope", "sinks") else jnp.bfloat16), np.float64)
        for name, x in case.arrays().items()
    }
    expected = oracle.attention(case, **arrays)
    result = run(CORES[core], case, arrays, jnp.bfloat16)
    assert result.out.dtype == result.dq.dtype == result.dk.dtype == result.dv.dtype == jnp.bfloat16
    for name, right, got in zip(expected._fields, expected, result, strict=True):
        error = np.abs(np.asarray(got, np.float64) - right).max() / np.abs(right).max()
        assert error < 2**-6, (name, error)  # four times the rounding of the result itself


@pytest.mark.fault(12)
@pytest.mark.parametrize("core", CORES)
def test_softmax_is_float32_where_bfloat16_ties(core: str) -> None:
    """Scores of 256 and 257 are the same number in bfloat16; the weights must still be 1 : e."""
    q = jnp.asarray([[[[16.0, 1.0]]]], jnp.bfloat16)
    k = jnp.asarray([[[[16.0, 0.0]], [[16.0, 1.0]]]], jnp.bfloat16)
    v = jnp.asarray([[[[0.0, 0.0]], [[1.0, 0.0]]]], jnp.bfloat16)
    function = functools.partial(CORES[core], masking=Masking(1, 2), scoring=Scoring(1.0))
    out = jax.jit(function)(q, k, v)
    np.testing.assert_allclose(np.asarray(out, np.float32)[0, 0, 0], [np.e / (1 + np.e), 0], rtol=2**-8)


@pytest.mark.fault(12)
@pytest.mark.parametrize("core", CORES)
def test_bias_cannot_raise_the_dead(core: str) -> None:
    """Fault 12: the largest of biases leaves hidden keys hidden (finfo.min + bias would show them)."""
    case = oracle.packed((4, 4))
    arrays = case.arrays()

    @jax.jit
    def attend(lift: float, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def bias(q_places: jax.Array, kv_places: jax.Array) -> jax.Array:
            after = kv_places[:, None, None, :] > q_places[:, None, :, None]
            shape = (len(q_places), case.H, q_places.shape[1], kv_places.shape[1])
            return jnp.broadcast_to(jnp.where(after, lift, 0.0), shape)

        masking = Masking(8, 8, **case.options())
        return CORES[core](q, k, v, masking, Scoring(0.5, bias))

    given = [jnp.asarray(arrays[name], jnp.float32) for name in "qkv"]
    raised, plain = (attend(lift, *given) for lift in (float(np.finfo(np.float32).max), 0.0))
    assert np.isfinite(raised).all()
    np.testing.assert_array_equal(raised, plain)
