import jax.numpy as jnp
import numpy as np
import pytest

from models.positions.alibi import Alibi, slopes

TWELVE = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.707107, 0.353553, 0.176777, 0.088388]
SIX = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]


@pytest.mark.parametrize(("heads", "expected"), [(12, TWELVE), (6, SIX), (1, [2**-8]), (4, SIX[:4])])
def test_slopes(heads: int, expected: list[float]) -> None:
    np.testing.assert_allclose(slopes(heads), expected, rtol=1e-5)


@pytest.mark.parametrize("heads", range(1, 20))
def test_slopes_of_any_count_fall_within_two_powers_of_two(heads: int) -> None:
    result = slopes(heads)
    below = 2 ** (heads.bit_length() - 1)
    assert result.shape == (heads,) and len(set(result.tolist())) == heads
    np.testing.assert_allclose(result[:below], [2.0 ** (-8 * h / below) for h in range(1, below + 1)], rtol=1e-6)
    np.testing.assert_allclose(
        result[below:], [2.0 ** (-4 * h / below) for h in range(1, 2 * below, 2)][: heads - below], rtol=1e-6
    )


@pytest.mark.fault(13)
def test_bias_is_minus_slope_times_distance_at_any_offset() -> None:
    bias = Alibi(6).bias()
    for offset in (0, 7, 100_000):
        queries, keys = jnp.asarray([[4, 9]]) + offset, jnp.asarray([[0, 3, 4]]) + offset
        expected = -np.asarray(SIX)[:, None, None] * np.array([[4, 1, 0], [9, 6, 5]])
        np.testing.assert_array_equal(bias(queries, keys), expected[None].astype(np.float32))
