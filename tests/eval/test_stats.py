"""Intervals: published values, and coverage on data whose truth is known."""

import numpy as np
import pytest
import scipy.stats
from scipy.signal import lfilter

from eval.quality import intervals


@pytest.mark.parametrize(
    ("correct", "examples", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_newcombes_table(correct: int, examples: int, low: float, high: float):
    assert intervals.wilson(correct, examples) == pytest.approx([low, high], abs=5e-5)


def test_wilson_of_nothing_says_nothing():
    assert intervals.wilson(0, 0) == [0.0, 1.0]


def test_five_hundred_samples_give_four_points():
    low, high = intervals.wilson(250, 500)
    assert (high - low) / 2 == pytest.approx(0.044, abs=0.001)


ROWS, LENGTH = 1024, 16


def correlated(generator: np.random.Generator) -> np.ndarray:
    """Losses [ROWS, LENGTH] with mean 2 whose neighbours correlate at 0.9: an AR(1) chain over all rows."""
    noise = generator.normal(size=ROWS * LENGTH + 200) * np.sqrt(1 - 0.9**2)
    return 2 + lfilter([1], [1, -0.9], noise)[200:].reshape(ROWS, LENGTH)


def covered(block_tokens: int, trials: int, resamples: int) -> float:
    hits = 0
    for trial in range(trials):
        losses = correlated(np.random.default_rng(trial))
        if block_tokens > 1:
            sums, counts = intervals.blocks(losses.sum(1), np.full(ROWS, LENGTH), block_tokens)
        else:
            sums, counts = losses.ravel(), np.ones(losses.size)
        low, high = intervals.block_bootstrap(sums, counts, resamples=resamples, seed=trial)
        hits += low <= 2 <= high
    return hits / trials


def test_the_block_interval_covers_the_truth_and_one_over_tokens_does_not():
    assert covered(block_tokens=256, trials=400, resamples=300) == pytest.approx(0.945, abs=0.025)
    assert covered(block_tokens=1, trials=10, resamples=100) < 0.6


def test_blocks_keep_every_token_and_the_order():
    counts = np.array([10, 0, 10, 5, 10, 10, 3])
    sums = np.array([1.0, 0, 2, 3, 4, 5, 6])
    block_sums, block_counts = intervals.blocks(sums, counts, block_tokens=1)
    assert block_sums.tolist() == [1, 2, 3, 4, 5, 6] and block_counts.tolist() == [10, 10, 5, 10, 10, 3]
    many_sums, many_counts = intervals.blocks(np.ones(4096), np.full(4096, 16), block_tokens=1024)
    assert len(many_counts) == 64 and set(many_counts) == {1024} and many_sums.sum() == 4096


def test_the_interval_is_of_the_weighted_mean():
    low, high = intervals.block_bootstrap(np.array([16.0, 12.0]), np.array([8.0, 2.0]), resamples=500)
    assert low < 2.8 < high


def test_too_little_to_resample():
    assert intervals.block_bootstrap(np.ones(1), np.ones(1)) is None
    assert intervals.block_bootstrap(np.ones(8), np.ones(8), resamples=0) is None


def test_equal_losses_have_no_spread():
    assert intervals.block_bootstrap(np.full(40, 6.0), np.full(40, 3.0)) == pytest.approx([2, 2])


def test_a_share_of_whole_examples_has_scipys_wilson_interval():
    for correct, examples in ((0, 7), (3, 7), (7, 7), (48, 50), (311, 700)):
        assert intervals.score_interval(correct / examples, examples) == pytest.approx(
            intervals.wilson(correct, examples)
        )
    assert intervals.score_interval(0.0, 0.0) == [0.0, 1.0]


def clustered(generator, rows: int, size: int, share: float, alike: float) -> tuple[np.ndarray, np.ndarray]:
    """Answers of rows that have one result with probability `alike`, else each its own."""
    own = generator.random((rows, size)) < share
    whole = np.where(generator.random((rows, 1)) < alike, own[:, :1], own)
    return whole.ravel(), np.repeat(np.arange(rows), size)


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_intervals_cover_where_the_answers_of_a_row_stand_or_fall_together(alike: float, share: float):
    generator, inside, naive, trials = np.random.default_rng(0), 0, 0, 600
    for _ in range(trials):
        correct, row = clustered(generator, 60, 4, share, alike)
        low, high = intervals.score_interval(correct.mean(), intervals.independent(correct, row))
        inside += low <= share <= high
        low, high = intervals.wilson(correct.sum(), len(correct))
        naive += low <= share <= high
    assert 0.925 < inside / trials < 0.998
    assert alike == 0 or naive / trials < 0.92  # what counting every answer would claim


def test_independent_answers_are_those_of_a_bootstrap_over_rows():
    """scipy resamples the rows; the interval of so many independent answers is as wide."""
    correct, row = clustered(np.random.default_rng(1), 200, 4, 0.6, 0.5)
    shares = correct.reshape(200, 4).mean(axis=1)
    result = scipy.stats.bootstrap((shares,), np.mean, n_resamples=4000, method="percentile", rng=0).confidence_interval
    low, high = intervals.score_interval(correct.mean(), intervals.independent(correct, row))
    assert (low, high) == pytest.approx(result, abs=0.006)
    assert high - low > 1.15 * np.diff(intervals.wilson(correct.sum(), 800))[0]


def test_where_errors_are_rare_rows_count_about_once_each():
    row = np.repeat(np.arange(100), 16)
    right = np.ones(1600, bool)
    none = intervals.independent(right, row)
    right[5] = False
    one = intervals.independent(right, row)
    assert 90 < none < 105 and 90 < one < 110
    assert intervals.independent(~right, row) == pytest.approx(one)
    # One error more does not make the share much surer.
    low = intervals.score_interval(1.0, none)[0]
    assert intervals.score_interval(right.mean(), one)[0] == pytest.approx(low, abs=0.005) and 0.95 < low < 0.97


def test_rows_of_one_answer_and_rows_that_agree_count_every_answer():
    row = np.repeat(np.arange(10), 4)
    assert (
        intervals.independent(np.ones(40, bool)) == intervals.independent(np.arange(40) % 3 == 0, np.arange(40)) == 40
    )
    assert intervals.independent(np.zeros(0, bool), np.zeros(0, int)) == 0
    assert intervals.independent(np.tile([True, False], 20), row) == 40  # rows that agree exactly: answers count
