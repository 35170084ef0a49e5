"""Intervals against published values, scipy's own tests and simulation."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from report.claims.comparing import RESOLVED, comparisons
from report.reading.directories import Arm, Run, Study
from report.statistics.intervals import Difference, holm, newcombe, over_seeds, paired, wilson
from report.statistics.shares import paired_shares


def seeds(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def test_interval_over_seeds_is_students_t() -> None:
    one = over_seeds([2.0, 2.1, 2.3])
    expected = stats.ttest_1samp([2.0, 2.1, 2.3], 0).confidence_interval(0.95)
    assert one.mean == pytest.approx(6.4 / 3)
    assert (one.low, one.high) == pytest.approx((expected.low, expected.high))
    assert (one.count, one.over) == (3, "seeds")


def test_two_seeds_have_the_wide_interval_of_one_degree_of_freedom() -> None:
    one = over_seeds([1.0, 1.1])
    assert one.half == pytest.approx(12.7062 * 0.05, rel=1e-4)  # t(0.975; 1) = 12.706, standard error 0.1 / 2


def test_one_seed_has_no_interval_and_what_is_not_finite_is_no_seed() -> None:
    one = over_seeds([1.5, math.nan, math.inf])
    assert one.count == 1 and one.mean == 1.5 and math.isnan(one.low)
    assert over_seeds([]).count == 0


def test_paired_difference_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(1)
    arm, base = rng.normal(2.0, 0.1, 5), rng.normal(1.9, 0.1, 5)
    one = paired(seeds(arm), seeds(base))
    expected = stats.ttest_rel(arm, base)
    interval = expected.confidence_interval(0.95)
    assert one.mean == pytest.approx(float((arm - base).mean()))
    assert (one.low, one.high) == pytest.approx((interval.low, interval.high))
    assert one.p == pytest.approx(expected.pvalue)


def test_pairing_takes_only_seeds_that_both_have() -> None:
    one = paired({0: 1.0, 1: 2.0, 3: 9.0}, {0: 0.5, 1: 1.4, 2: 7.0})
    assert one.seeds == (0, 1)
    assert one.mean == pytest.approx(0.55)
    assert not paired({0: 1.0}, {1: 1.0}).seeds


def test_pairing_cancels_what_seeds_share() -> None:
    shared = np.array([0.0, 0.5, -0.4])
    one = paired(seeds(2.0 + shared + [0.001, -0.001, 0.0]), seeds(1.9 + shared))
    assert one.resolved and one.half < 0.01
    assert over_seeds(2.0 + shared).half > 0.5


def test_one_common_seed_resolves_nothing() -> None:
    one = paired({0: 1.0}, {0: 9.0})
    assert one.mean == -8.0 and not one.resolved and math.isnan(one.low)


def test_the_bootstrap_takes_part_from_six_seeds_on_and_never_narrows() -> None:
    rng = np.random.default_rng(3)
    for number in (3, 5, 6, 9, 20):
        gaps = rng.lognormal(0, 0.8, number)
        one = paired(seeds(gaps), seeds(np.zeros(number)))
        t = stats.t.interval(0.95, number - 1, gaps.mean(), stats.sem(gaps))
        if number < 6:
            assert (one.low, one.high) == pytest.approx(t) and math.isnan(one.bootstrap[0])
            continue
        # The percentiles that resampled means need so that those of a normal sample would end where t ends.
        tail = stats.norm.cdf(stats.t.ppf(0.025, number - 1) / math.sqrt((number - 1) / number))
        means = rng.choice(gaps, (200_000, number)).mean(axis=1)
        expected = np.quantile(means, [tail, 1 - tail])
        reach = np.array(one.bootstrap) - gaps.mean()
        assert reach == pytest.approx(expected - gaps.mean(), rel=0.04)
        assert one.low == min(t[0], one.bootstrap[0]) and one.high == max(t[1], one.bootstrap[1])
    assert paired(seeds(np.full(8, 2.5)), seeds(np.full(8, 2.0))).bootstrap == (0.5, 0.5)


def test_no_mean_of_resampled_seeds_covers_the_true_one_for_few_seeds() -> None:
    """Why the bootstrap waits for six seeds: even the range of all its means holds the truth too rarely."""
    rng = np.random.default_rng(4)
    for number in (3, 4, 5):
        gaps = rng.normal(0, 1, (20_000, number))
        share = np.mean((gaps.min(axis=1) < 0) & (gaps.max(axis=1) > 0))
        assert share == pytest.approx(1 - 2.0 ** (1 - number), abs=0.01) and share < 0.95


# (values, comparisons) -> TTestPower().solve_power(nobs=values, alpha=0.05 / comparisons, power=0.8) of statsmodels
# 0.15.0, which goes by the noncentral t.
SEEN = {
    (3, 1): 3.264043552819638,
    (3, 4): 6.5460,  # where scipy's noncentral t and 400,000 simulated tests have power 0.80; statsmodels stops at 5.0
    (4, 4): 3.44772673363901,
    (5, 1): 1.6819970833232674,
    (5, 4): 2.4767903925670174,
    (8, 1): 1.156035271959959,
    (20, 4): 0.814591415440914,
}


@pytest.mark.parametrize(("number", "comparisons"), list(SEEN))
def test_the_smallest_difference_seen_is_that_of_the_t_tests_power(number: int, comparisons: int) -> None:
    gaps = np.array([(-1.0) ** i for i in range(number)]) + (number % 2) * 0.1
    one = paired(seeds(gaps), seeds(np.zeros(number)))
    expected = SEEN[number, comparisons] * np.std(gaps, ddof=1)
    assert one.smallest_seen(comparisons) == pytest.approx(expected, rel=2e-3)


def test_the_smallest_difference_seen_is_seen_four_times_in_five() -> None:
    rng = np.random.default_rng(5)
    for number in (3, 5):
        shift = Difference(0, 0, 0, 0, tuple(range(number)), 0.01).smallest_seen()
        gaps = rng.normal(shift, 0.01, (1000, number))
        assert np.mean([paired(seeds(one), seeds(0 * one)).resolved for one in gaps]) == pytest.approx(0.8, abs=0.03)
    assert math.isnan(paired({0: 1.0}, {0: 2.0}).smallest_seen())


def study_of(losses: dict[str, np.ndarray]) -> Study:
    """Returns a study whose arms' finished runs have these validation losses, one a seed; the first is the baseline."""
    arms = [
        Arm(
            arm, {}, {}, [Run(arm, k, Path(), "done", evals={"loss": {"loss": x}}) for k, x in enumerate(each.tolist())]
        )
        for arm, each in losses.items()
    ]
    return Study("s", "", "", arms[0].name, ["loss"], arms, list(range(len(arms[0].runs))))


def simulated(
    rng: np.random.Generator, sweeps: int, arms: int, number: int, shift: float
) -> tuple[float, float, float]:
    """Returns, of simulated sweeps as the report judges them, the shares that claim anything at all, that claim a
    difference for the arm that is worse than the baseline by `shift`, and whose interval for it holds the truth.
    """
    claimed, result, covered = 0, 0, 0
    for _ in range(sweeps):
        shared, noise = rng.normal(0, 0.1, number), rng.normal(0, 0.01, (arms + 1, number))
        losses = {f"arm{index}": 2.0 + shared + each for index, each in enumerate(noise)}
        losses[f"arm{arms}"] += shift
        message = comparisons(study_of(losses))
        claimed += any(one.verdict == RESOLVED for one in message)
        result += message[-1].verdict == RESOLVED
        covered += message[-1].difference.low <= shift <= message[-1].difference.high
    return claimed / sweeps, result / sweeps, covered / sweeps


@pytest.mark.parametrize(("arms", "number"), [(1, 3), (4, 5)])
def test_sweeps_without_a_difference_claim_none_and_intervals_cover(arms: int, number: int) -> None:
    """A quick look; the measurement is the slow test's."""
    claimed, _, covered = simulated(np.random.default_rng(0), 250, arms, number, 0.0)
    assert claimed < 0.08 and 0.91 < covered < 0.985
    _, result, covered = simulated(np.random.default_rng(1), 100, arms, number, 0.05)
    assert result > 0.5 and covered > 0.88


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "number"), [(1, 2), (1, 3), (1, 5), (4, 3), (4, 5), (9, 5), (4, 8), (4, 20)])
def test_of_2000_sweeps_without_a_difference_five_percent_claim_one_and_intervals_cover(arms: int, number: int) -> None:
    claimed, _, _ = simulated(np.random.default_rng(number), 2000, arms, number, 0.0)
    _, result, covered = simulated(np.random.default_rng(100 + number), 2000, arms, number, 0.02)
    print(f"{arms} arms, {number} seeds: {claimed:.2%} claim, {result:.1%} find, {covered:.2%} covered")
    sampling = 2 * math.sqrt(0.05 * 0.95 / 2000)
    assert claimed <= 0.05 + sampling and 0.95 - sampling <= covered <= 0.975


@pytest.mark.slow
def test_of_many_more_sweeps_no_more_claim_one() -> None:
    gaps = np.random.default_rng(0).normal(0, 0.01, (30_000, 3))
    claimed = np.mean([paired(seeds(one), seeds(0 * one)).resolved for one in gaps])
    print(f"30,000 sweeps of one comparison and 3 seeds: {claimed:.2%} claim")
    assert claimed <= 0.0525


@pytest.mark.parametrize(("correct", "examples"), [(0, 10), (3, 10), (81, 263), (15, 148), (64, 64), (1, 29)])
def test_wilson_is_the_score_interval(correct: int, examples: int) -> None:
    one = wilson(correct, examples)
    expected = stats.binomtest(correct, examples).proportion_ci(0.95, method="wilson")
    assert (one.low, one.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert one.mean == correct / examples and one.examples == examples


def test_wilson_has_newcombes_published_value() -> None:
    one = wilson(81, 263)  # Newcombe 1998, Two-sided confidence intervals for the single proportion, table I
    assert (one.low, one.high) == pytest.approx((0.2553, 0.3662), abs=1e-4)


@pytest.mark.parametrize(("correct", "examples"), [(1, 0), (math.nan, 5), (6, 5), (-1, 5), (1, math.inf)])
def test_impossible_shares_are_nothing(correct: float, examples: float) -> None:
    assert wilson(correct, examples).count == 0 and math.isnan(wilson(correct, examples).mean)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((56, 70), (48, 80), (0.0524, 0.3339)), ((9, 10), (3, 10), (0.1705, 0.8090)), ((10, 10), (0, 20), (0.6791, 1.0))],
)
def test_differences_of_shares_are_newcombes(
    first: tuple[int, int], second: tuple[int, int], expected: tuple[float, float]
) -> None:
    assert newcombe(first, second) == pytest.approx(expected, abs=1e-4)  # Newcombe 1998, method 10, table II


def test_seeds_that_agree_exactly_are_not_certain_about_shares() -> None:
    few = paired_shares(dict.fromkeys(range(3), (1, 1)), {0: (1, 2), 1: (1, 2), 2: (1, 2)})
    assert not few.resolved and few.p == pytest.approx(
        2 * stats.norm.sf(0.5 / math.sqrt(2 / 3 * 1 / 3 * (1 / 3 + 1 / 6)))
    )
    many = paired_shares(dict.fromkeys(range(3), (200, 200)), dict.fromkeys(range(3), (100, 200)))
    assert many.resolved and many.high - many.low > 0.05


def test_shares_that_scatter_over_seeds_have_the_t_interval() -> None:
    arm = {0: (600, 1000), 1: (900, 1000), 2: (990, 1000)}
    base = {0: (500, 1000), 1: (500, 1000), 2: (500, 1000)}
    one = paired_shares(arm, base)
    plain = paired({0: 0.6, 1: 0.9, 2: 0.99}, {0: 0.5, 1: 0.5, 2: 0.5})
    assert (one.low, one.high) == pytest.approx((plain.low, plain.high))


def test_holm_is_the_step_down_method() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = holm([0.02, math.nan, 0.5])
    assert adjusted[0] == pytest.approx(0.04) and math.isnan(adjusted[1]) and adjusted[2] == 0.5
    assert holm([]) == []


def test_resolved_means_zero_is_outside() -> None:
    assert Difference(1, 0.1, 2, 0.01, (0, 1)).resolved
    assert Difference(-1, -2, -0.1, 0.01, (0, 1)).resolved
    assert not Difference(1, -0.1, 2, 0.06, (0, 1)).resolved
    assert not Difference(1, math.nan, math.nan, math.nan, (0,)).resolved
