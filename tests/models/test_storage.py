"""Numbers stored in 8 bits: fault 20, the error of half a step, dtypes and bytes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from models.decoding import storage
from models.decoding.kv_cache import KVCache
from tests.models.common import tiny

SIZES = [1e-30, 1e-6, 0.02, 1.0, 300.0, 1e30]


def stored(x: np.ndarray, kind: str) -> storage.Quantised:
    result = jax.jit(lambda x: storage.encode(x, storage.empty(x.shape, kind, x.dtype)))(jnp.asarray(x))
    assert isinstance(result, storage.Quantised)
    return result


def back(found: storage.Quantised) -> np.ndarray:
    """Reads them back in float64, from the codes themselves."""
    return np.asarray(found.numbers).astype(np.float64) * np.asarray(found.scales, np.float64)


def spread_numbers() -> np.ndarray:
    """Rows [len(SIZES), 3, 50, 8] of one size each; some elements far smaller than their row's largest."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((len(SIZES), 3, 50, 8)) * 2.0 ** draw.integers(-12, 1, (len(SIZES), 3, 50, 8))
    return (x * np.array(SIZES)[:, None, None, None]).astype(np.float32)


@pytest.mark.fault(20)
def test_small_values_live() -> None:
    """Fault 20: a scale floored at 1 codes all of these to 0."""
    row = np.array([[0.05, -0.1, 0.02, 0.0], [0.0] * 4], np.float32)[None, None]
    result = stored(row, "int8")
    assert result.codes.dtype == jnp.int8 and result.scales.dtype == jnp.float32
    assert result.codes[0, 0].tolist() == [[63, -127, 25, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(result.scales[0, 0, :, 0], [0.1 / 127, 0], rtol=1e-6)
    assert result.codes.nbytes == 8 and result.scales.nbytes == 8
    for size in SIZES:
        codes = stored(row / np.float32(0.1) * np.float32(size), "int8").codes[0, 0, 0]
        assert codes.tolist() in ([63, -127, 25, 0], [64, -127, 25, 0])  # the tie moves with float32's rounding


def test_int8_is_off_by_half_a_step_of_its_own_token_and_head() -> None:
    x = spread_numbers()
    result = stored(x, "int8")
    step = np.abs(x).max(-1, keepdims=True).astype(np.float64) / 127
    np.testing.assert_allclose(result.scales, step, rtol=1e-6)
    assert (np.abs(back(result) - x) <= step * (0.5 + 1e-4)).all()
    assert (np.abs(np.asarray(result.codes, int)).max(-1) == 127).all()


def test_fp8_is_the_nearest_of_its_numbers() -> None:
    x = spread_numbers()
    result = stored(x, "fp8")
    assert result.numbers.dtype == jnp.float8_e4m3fn and result.codes.nbytes == x.size
    scale = np.abs(x).max(-1, keepdims=True).astype(np.float64) / 448
    np.testing.assert_allclose(result.scales, scale, rtol=1e-6)
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    nearest = np.nanmin(np.abs(x[..., None] / scale[..., None] - every), axis=-1)
    off = np.abs(np.asarray(result.numbers).astype(np.float64) - x / scale)
    np.testing.assert_allclose(off, nearest, atol=1e-4)
    assert (off <= np.maximum(np.abs(x / scale) / 16, 2.0**-10) + 1e-4).all()


@pytest.mark.fault(20)
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_zeros_and_infinitesimals(kind: str) -> None:
    assert (back(stored(np.zeros((1, 1, 3, 4), np.float32), kind)) == 0).all()
    tiniest = np.full((1, 1, 1, 4), 1e-37, np.float32)
    assert np.isfinite(back(stored(tiniest, kind))).all()
    narrow = jnp.asarray([[[[0.05, -0.1, 0.02, 0.0]]]], jnp.bfloat16)
    result = storage.decode(storage.encode(narrow, storage.empty(narrow.shape, kind, narrow.dtype)), jnp.bfloat16)
    assert result.dtype == jnp.bfloat16
    np.testing.assert_allclose(result.astype(jnp.float32), narrow.astype(jnp.float32), atol=0.1 / 16)


@pytest.mark.fault(20)
@pytest.mark.parametrize(("kind", "dtype"), [("int8", "int8"), ("fp8", "float8_e4m3fn")])
def test_the_config_decides_and_the_bytes_are_true(kind: str, dtype: str) -> None:
    """2 layers x (k and v) x 2 heads x 4 numbers, of 3 rows x 10 tokens: a byte a number, 4 a scale."""
    cache = KVCache.create(tiny(attention__kv_storage=kind), 3, 10)
    for entry in cache.entries:
        assert {str(entry[name].numbers.dtype) for name in ("k", "v")} == {dtype}
    assert cache.nbytes - cache.scale_nbytes == 3 * 10 * 2 * 2 * 2 * 4
    assert cache.scale_nbytes == 3 * 10 * 2 * 2 * 2 * 4
    plain = KVCache.create(tiny(), 3, 10)
    assert plain.scale_nbytes == 0 and plain.nbytes == 4 * 3 * 10 * 2 * 2 * 2 * 4
