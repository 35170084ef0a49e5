"""Rows of exactly one length: what is scored at a length depends on it and on the setting, never on other lengths."""

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from data.validation import ExactRows
from tests.data.common import Stream, scored


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 12),
    st.integers(0, 300),
    st.booleans(),
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_rows_are_whole_and_every_token_is_scored_once_or_counted(sizes, separated, length, batch, home, most, slides):
    stream = Stream(sizes, separated, "validation")
    setting = {"training_length": home, "max_tokens": most, "skip": length if slides else 0}
    setting["before"] = setting["skip"]
    result = ExactRows(stream, length=length, batch_size=batch, **setting)
    targets = [target for rows in result for target in scored(rows)]
    assert len(set(targets)) == len(targets) == result.tokens == result.rows * length
    assert all(setting["skip"] < target < len(stream) - separated for target in targets)
    assert result.available == max(0, len(stream) - separated - 1 - setting["skip"])
    assert (result.rows == 0) == (result.available < length)
    if not most or most >= result.available:
        assert result.tokens + result.dropped == result.available and result.dropped < length
        first = setting["skip"] + 1
        assert sorted(targets) == list(range(first, first + result.tokens))
    for rows in result:
        assert rows["tokens"].shape == (batch, setting["before"] + length)
        counts = rows["weights"].sum(axis=1)
        assert set(counts.tolist()) <= {0.0, float(length)}  # a row is whole, or fills up the last batch
        assert not rows["weights"][:, : setting["before"]].any()
        full = rows["tokens"][counts > 0]
        assert (np.diff(full, axis=1) == 1).all(), "a row's own context stands before it"


def test_lengths_that_divide_a_stretch_score_the_same_tokens_from_all_over_the_split():
    stream = Stream([1000], False, "validation")
    setting = {"batch_size": 3, "training_length": 4, "max_tokens": 256}
    results = {
        n: sorted(t for rows in ExactRows(stream, length=n, **setting) for t in scored(rows)) for n in (4, 8, 32)
    }
    assert results[4] == results[8] == results[32]
    assert len(results[4]) == 256 and results[4][0] == 1 and results[4][-1] > 850
