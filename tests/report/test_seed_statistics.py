"""Shares over seeds, deviations pooled over arms, noise of the text: against independent references."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from report.charts import effects
from report.claims import words
from report.claims.comparing import RESOLVED, UNRESOLVED, claims, comparisons
from report.page import latex, methods, table
from report.reading.directories import Arm, Run, Study, Sweep
from report.statistics import pooling, sequential, shares, text_noise
from report.statistics.intervals import Noise, Spread, paired, wilson


def by_seed(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def test_a_share_over_seeds_has_the_t_interval_of_its_logit() -> None:
    values = np.array([0.7, 0.8, 0.85, 0.9, 0.75])
    one = shares.over_seeds([(1000 * value, 1000) for value in values])
    mean, error = values.mean(), stats.sem(values)
    # The delta method: the logit's standard error is the share's over p (1 - p).
    ends = stats.t.interval(0.95, 4, special.logit(mean), error / (mean * (1 - mean)))
    assert (one.low, one.high) == pytest.approx(special.expit(np.array(ends)))
    assert one.mean == pytest.approx(0.8) and one.over == "seeds" and one.count == 5


def test_seeds_that_agree_have_the_interval_of_their_rows() -> None:
    one = shares.over_seeds([(90, 100)] * 4)
    assert (one.low, one.high) == pytest.approx((wilson(360, 400).low, wilson(360, 400).high))
    all_right = shares.over_seeds([(100, 100)] * 3)
    assert all_right.high == 1.0 and all_right.low == pytest.approx(wilson(300, 300).low)


def test_one_solved_and_one_unsolved_seed_are_too_few_to_say_anything() -> None:
    one = shares.over_seeds([(987, 1000), (119, 1000)])
    assert one.mean == pytest.approx(0.553) and one.over == "few" and math.isnan(one.low)
    gap = shares.paired_shares({0: (987, 1000), 1: (119, 1000)}, {0: (990, 1000), 1: (985, 1000)})
    assert gap.few and not gap.resolved and -1 <= gap.low <= gap.high <= 1


def test_no_interval_of_a_share_leaves_its_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        number, rows = rng.integers(1, 7), int(rng.integers(1, 50))
        counts = rng.binomial(rows, rng.beta(0.3, 0.3, (2, number)))
        for arm in counts:
            one = shares.over_seeds([(right, rows) for right in arm])
            assert one.over == "few" or 0 <= one.low <= one.mean <= one.high <= 1
        gap = shares.paired_shares(*[{k: (int(right), rows) for k, right in enumerate(arm)} for arm in counts])
        assert number < 2 or -1 <= gap.low <= gap.mean <= gap.high <= 1


def test_pooled_deviation_is_that_of_the_two_way_table() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(0, 0.1, (4, 5)) + rng.normal(0, 1, 5) + np.arange(4)[:, None]
    result = pooling.pooled({f"a{k}": by_seed(row) for k, row in enumerate(table)})
    assert result is not None and (result.arms, result.freedom) == (4, 12)
    # The same by least squares on dummy variables of arms and seeds.
    arm, seed = np.divmod(np.arange(20), 5)
    design = np.column_stack([np.eye(4)[arm], np.eye(5)[seed][:, 1:]])
    (left,) = np.linalg.lstsq(design, table.ravel(), rcond=None)[1]
    assert result.deviation == pytest.approx(math.sqrt(2 * left / 12))
    assert result.p == pytest.approx(stats.bartlett(*pooling.residuals(table)).pvalue)


def test_pooling_is_refused_where_one_arm_scatters_and_where_seeds_differ() -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(0, 0.01, (4, 8)) * np.array([1, 1, 1, 12])[:, None]
    values = {f"a{k}": by_seed(row) for k, row in enumerate(table)}
    result = pooling.pooled(values)
    assert result is not None and result.refused
    assert pooling.pooled({**values, "a3": {9: 1.0, 10: 1.1}}) is None
    assert pooling.pooled({name: values[name] for name in ("a0", "a1")}) is None


def test_a_pooled_difference_has_its_degrees_of_freedom_and_never_the_smaller_deviation() -> None:
    arm, base = by_seed(np.array([1.0, 1.1, 1.2])), by_seed(np.zeros(3))
    one = paired(arm, base, Noise(0.5, 4, 6.0))
    error = 0.5 / math.sqrt(3)
    assert one.p == pytest.approx(2 * stats.t.sf(1.1 / error, 6)) and one.pooled == 4
    assert (one.low, one.high) == pytest.approx(stats.t.interval(0.95, 6, 1.1, error))
    assert paired(arm, base, Noise(0.01, 4, 6.0)).deviation == pytest.approx(0.1)


def test_text_adds_the_variance_that_the_joint_bootstrap_finds() -> None:
    rng = np.random.default_rng(3)
    seeds, documents = 12, 60
    tokens = rng.integers(100, 2000, documents).astype(float)
    of_text, of_seed = rng.normal(0, 0.05, documents), rng.normal(0, 0.02, seeds)
    each = 0.1 + of_text + of_seed[:, None] + rng.normal(0, 0.01, (seeds, documents))
    variance, freedom = text_noise.variance(each * tokens, tokens)
    share = tokens / tokens.sum()
    assert freedom == 59 and variance == pytest.approx(0.05**2 * float((share**2).sum()), rel=0.4)
    low, high = text_noise.bootstrap(each * tokens, tokens)
    means = (each * tokens).sum(1) / tokens.sum()
    error = math.sqrt(means.var(ddof=1) / seeds + variance)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, seeds - 1) * error, rel=0.15)
    assert math.sqrt(means.var(ddof=1) / seeds) < 0.75 * error, "seeds alone would promise too much"


def test_two_kinds_of_noise_claim_falsely_as_often_as_the_level_says_where_satterthwaite_claims_more() -> None:
    rng, number, level = np.random.default_rng(4), 20_000, 0.002
    rates = []
    for ratio in (0.1, 0.3, 1.0, 10.0):  # text's true error over the seeds'
        gap = rng.normal(size=number) * math.hypot(1, ratio)
        seeds, text = rng.chisquare(2, number) / 2, ratio**2 * rng.chisquare(31, number) / 31
        halves = [Spread(math.sqrt(a), 2, math.sqrt(b), 31).half(level) for a, b in zip(seeds, text, strict=True)]
        rates.append(float(np.mean(np.abs(gap) > halves)))
        freedom = (seeds + text) ** 2 / (seeds**2 / 2 + text**2 / 31)
        rates.append(float(np.mean(2 * stats.t.sf(np.abs(gap) / np.sqrt(seeds + text), freedom) < level)))
    assert max(rates[::2]) < level + 3 * math.sqrt(level / number) and max(rates[1::2]) > 1.5 * level, rates


def test_the_p_value_is_the_level_whose_interval_ends_there() -> None:
    spread = Spread(0.2, 3, 0.1, 31)
    assert spread.half(spread.p(0.9)) == pytest.approx(0.9, rel=1e-4) and spread.p(0.0) == pytest.approx(1, abs=1e-5)
    assert Spread(0.2, 3).p(0.9) == pytest.approx(2 * stats.t.sf(4.5, 3))
    assert Spread(0.2, 3).seen(0.05) < spread.seen(0.05) < Spread(math.hypot(0.2, 0.1), 3).seen(0.05)


def test_a_refusal_to_pool_costs_degrees_of_freedom_and_never_lowers_the_deviation() -> None:
    arm, base = by_seed(np.array([1.0, 1.001, 1.002])), by_seed(np.zeros(3))
    one = paired(arm, base, Noise(0.5, 4))
    assert (one.deviation, one.freedom, one.pooled) == (0.5, 2.0, 0)
    assert one.p == pytest.approx(2 * stats.t.sf(1.001 / (0.5 / math.sqrt(3)), 2))


def test_scalings_beyond_the_training_length_count_the_choice_of_text() -> None:
    rng = np.random.default_rng(5)
    blocks = rng.normal(0, 0.2, 16)

    def run(seed: int, text: bool) -> Run:
        entries = []
        for name, nats in (("trained", 3 + 0 * blocks), ("yarn", 3.0 + blocks + 0.001 * seed)):
            pieces = {"text": {"unit": "blocks", "loss": (100 * nats).tolist(), "tokens": [100] * 16}} if text else {}
            loss = float(nats.mean())
            entries.append({"length": 128, "multiple": 2, "scaling": name, "loss": loss, **pieces})
        return Run("a", seed, Path(), "done", evals={"loss": {"loss": 3.0, "by_length": entries}})

    halves = []
    for text in (False, True):
        arm = Arm("a", {}, {}, [run(seed, text) for seed in range(3)])
        gap = claims(Study("s", "", "", "a", ["loss"], [arm], [0, 1, 2])).scalings[0].lines[1].difference
        assert gap is not None
        halves.append(gap.half)
    error = blocks.std(ddof=1) / 4
    assert halves[1] > 20 * halves[0]
    assert halves[1] == pytest.approx(math.hypot(stats.t.isf(0.025, 15) * error, halves[0]), rel=0.01)


def test_text_of_which_all_seeds_lose_alike_adds_nothing() -> None:
    tokens = np.full(20, 100.0)
    variance, _ = text_noise.variance(np.outer([0.1, 0.2, 0.3], tokens), tokens)
    assert variance == pytest.approx(0, abs=1e-18)


def test_levels_of_looks_are_the_published_ones_and_add_up() -> None:
    assert sequential.levels(3) == pytest.approx([0.005, 0.015, 0.03])
    for looks in (1, 2, 4, 7):
        assert sum(sequential.levels(looks)) == pytest.approx(0.05)
    assert sequential.check((5, 10), 0.1) == ""
    for looks, care in [((), 0.1), ((5, 5), 0.1), ((1, 3), 0.1), ((5, 10), 0.0), ((5, 10), math.inf), ((5.0,), 0.1)]:
        assert sequential.check(looks, care)


def study(losses: dict[str, list[float]], **given: object) -> Study:
    arms = [
        Arm(name, {}, {}, [Run(name, k, Path(), "done", evals={"loss": {"loss": x}}) for k, x in enumerate(each)])
        for name, each in losses.items()
    ]
    return Study("s", "", "", arms[0].name, ["loss"], arms, list(range(len(arms[0].runs))), **given)  # type: ignore[arg-type]


def noisy(shift: float, number: int = 5, seed: int = 0, scale: float = 0.01) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    base = 2 + rng.normal(0, 0.1, number)
    gap = rng.normal(0, 1, number)
    gap = shift + scale * (gap - gap.mean()) / gap.std(ddof=1)
    return {"a": base.tolist(), "b": (base + gap).tolist()}


def test_all_studies_of_a_report_are_one_family() -> None:
    # p = 0.02: resolved by itself, not among 4.
    losses = noisy(0.01 / math.sqrt(5) * stats.t.isf(0.01, 4))
    alone = study(losses)
    assert comparisons(alone)[0].verdict == RESOLVED and claims(alone).family == 1
    studies = [study(losses) for _ in range(4)]
    Sweep(Path(), "s", "", "", "", studies)
    one = comparisons(studies[2])[0]
    assert (one.verdict, one.family) == (UNRESOLVED, 4) and one.p_holm == pytest.approx(0.08)
    assert "All 4 claims tested in this report are one family" in words.preface(studies[0])


def test_a_look_tests_at_its_level_and_counts_only_seeds_that_are_through() -> None:
    plan = sequential.Plan((5, 10, 20), 0.001)
    shift = 0.01 / math.sqrt(5) * stats.t.isf(0.02 / 2, 4)  # p = 0.02 with five seeds
    one = study(noisy(shift), plan=plan, care=0.001)
    (result,) = comparisons(one)
    assert result.verdict == UNRESOLVED and result.p_holm == pytest.approx(0.02 * 10)
    half = stats.t.isf(0.0025, 4) * 0.01 / math.sqrt(5)
    assert (result.difference.low, result.difference.high) == pytest.approx((shift - half, shift + half))
    assert "After look 1 of 3, 5 seeds, open: b." in words.preface(one)
    more = study(noisy(shift, 7), plan=plan, care=0.001)  # two seeds of the second look are there already
    assert len(comparisons(more)[0].difference.seeds) == 5
    early = study(noisy(shift, 4), plan=plan, care=0.001)
    early.seeds = list(range(5))
    assert "look 1 of 3 (5 seeds) is not complete" in words.arms(early)[0].text


def test_a_difference_known_to_be_smaller_than_care_is_said_to_be() -> None:
    (result,) = comparisons(study(noisy(0.001, 10, scale=0.002), care=0.01))
    error = 0.002 / math.sqrt(10)
    one_sided = max(stats.t.cdf((0.001 - 0.01) / error, 9), stats.t.sf((0.001 + 0.01) / error, 9))
    assert result.within_care and one_sided < 0.025
    assert "smaller than 0.01 nats either way" in words.arms(study(noisy(0.001, 10, scale=0.002), care=0.01))[0].text
    assert not comparisons(study(noisy(0.0095, 10, scale=0.002), care=0.01))[0].within_care


def test_the_seeds_that_would_show_what_is_cared_for_do_show_it() -> None:
    (result,) = comparisons(study(noisy(0.001, 5, scale=0.02), care=0.01))
    needed = result.seeds_for_care
    assert (
        needed is not None
        and f"{needed} seeds would show 0.01 nats" in words.arms(study(noisy(0.001, 5, scale=0.02), care=0.01))[0].text
    )
    rng = np.random.default_rng(5)
    for number, power in ((needed, 0.8), (needed // 2, 0.5)):
        gaps = rng.normal(0.01, 0.02, (4000, number))
        seen = float(np.mean(stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05))
        assert seen == pytest.approx(0.8, abs=0.03) if power == 0.8 else seen < 0.7


def test_no_power_is_told_that_is_impossible() -> None:
    (result,) = comparisons(study({"a": [2.0, 2.0], "b": [2.0, 5.0]}))
    assert math.isnan(result.smallest_seen) and result.few
    assert words.arms(study({"a": [2.0, 2.0], "b": [2.0, 5.0]}))[0].text.startswith("b against a, loss: too few seeds")


def test_seeds_added_after_a_look_without_a_plan_are_said_to_be() -> None:
    assert "2 looks, at 3 and 5 seeds. With so many up to 10%" in words.preface(study(noisy(0.0), looked=[3]))
    assert "look" not in words.preface(study(noisy(0.0)))


def test_intervals_of_a_look_are_labelled_with_its_confidence_and_seeds_are_counted_at_its_level() -> None:
    plan = sequential.Plan((5, 10, 20), 0.01)
    planned, fixed = (study(noisy(0.001, 5, scale=0.02), care=0.01, **more) for more in ({"plan": plan}, {}))
    said = [dict(methods.paragraphs(one))["Statistics"] for one in (planned, fixed)]
    assert "99.5% intervals" in said[0] and "95% intervals" in said[1] and "99.5%" not in said[1]
    assert "intervals of differences are 99.5%" in words.preface(planned)
    for one, sure in ((planned, "99.5%"), (fixed, "95%")):
        caption = latex.caption(table.build(one), table.build(one).columns)
        assert f"paired by seed, with its {sure} interval" in caption
        figure = effects.differences(one)
        assert figure is not None and f"Bars: {sure} intervals" in figure.caption
    needed = [comparisons(one)[0].seeds_for_care or 0 for one in (planned, fixed)]
    gaps = np.random.default_rng(5).normal(0.01, 0.02, (4000, needed[0]))
    seen = float(np.mean(stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.005))
    assert seen == pytest.approx(0.8, abs=0.03) and needed[0] > needed[1]


def test_methods_name_every_source_of_an_interval_and_only_those() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(2, 0.1, 6)
    even = {name: (base + rng.normal(0, 0.01, 6)).tolist() for name in "abcd"}
    odd = {**even, "d": (base + rng.normal(0, 0.04, 6)).tolist()}
    pooled, refused, two = (dict(methods.paragraphs(study(one)))["Statistics"] for one in (even, odd, noisy(0.0)))
    assert "pooled over 4 arms for losses (15 degrees of freedom) where Bartlett's test [@bartlett1937]" in pooled
    assert "bootstrap [@hesterberg2015]" in pooled and "rejects" not in pooled and "validation text" not in pooled
    assert "Where Bartlett's test [@bartlett1937] rejects" in refused and "is pooled" not in refused
    assert not any(word in two for word in ("Bartlett", "bootstrap", "validation text"))
