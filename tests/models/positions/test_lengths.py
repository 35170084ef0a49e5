"""Each token's length is that of its own sequence."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from models.positions import sequence_lengths

NUMBERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=6, max_size=6)


@settings(max_examples=30, deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=2), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_longest_position_of_the_same_segment(rows: list[list[tuple[int, int]]], requested: list[int]) -> None:
    """Segments may lie in pieces; those not there, and padding, are 0 long."""
    segments, places = (np.asarray([[pair[i] for pair in row] for row in rows], np.int32) for i in (0, 1))

    def length(b: int, segment: int) -> int:
        return max((p + 1 for s, p in rows[b] if s == segment and s != 0), default=0)

    expected = [[length(b, s) for s, _ in rows[b]] for b in range(2)]
    np.testing.assert_array_equal(sequence_lengths(jnp.asarray(places), jnp.asarray(segments)), expected)
    of = jnp.asarray([requested, requested])
    expected = [[length(b, s) for s in requested] for b in range(2)]
    np.testing.assert_array_equal(sequence_lengths(jnp.asarray(places), jnp.asarray(segments), of), expected)


def test_without_segments_a_row_is_one_sequence() -> None:
    places = jnp.asarray([[0, 1, 2], [5, 6, 7]])
    np.testing.assert_array_equal(sequence_lengths(places), [[3] * 3, [8] * 3])
    np.testing.assert_array_equal(sequence_lengths(places, of=jnp.zeros((2, 1), int)), [[3], [8]])
