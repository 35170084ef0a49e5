"""Gains in compute: made-up curves of known gain are recovered, what cannot be known is refused by name."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import UserError
from report import build, ladder
from report.charts import ladder as charts
from report.claims import ladder as claims
from report.claims.comparing import claims as claimed
from report.reading.directories import read
from report.statistics import gains
from report.statistics.gains import Curve, Lead
from report.statistics.intervals import holm
from tests.report import synthetic

RUNGS = np.array([1.0, 2.0, 4.0, 8.0])
UNIT = 1e12  # FLOPs of the lowest rung


def truth(flops: np.ndarray) -> np.ndarray:
    return np.asarray(1.4 + 1.8 * (flops / UNIT) ** -0.25)


def drawn(rng: np.random.Generator, gain: float, seeds: int = 3, deviation: float = 0.005) -> tuple[Curve, Curve]:
    """Returns (baseline, arm) with noise, half of it a seed's own at every rung, as branches have it."""

    def noisy(means: np.ndarray) -> np.ndarray:
        common, own = rng.normal(size=(seeds, 1)), rng.normal(size=(seeds, len(means)))
        return np.asarray(means + deviation * (common + own) / math.sqrt(2))

    flops = RUNGS * UNIT
    return Curve(flops, noisy(truth(flops))), Curve(flops, noisy(truth(flops * gain)))


def coverage(gain: float, times: int, seeds: int = 3) -> tuple[float, float]:
    """Returns the share of intervals that hold the gain: of the highest rung answered, and of all rungs."""
    rng = np.random.default_rng(7)
    heads, every = [], []
    for _ in range(times):
        baseline, arm = drawn(rng, gain, seeds)
        results = [gains.at_rung(baseline, arm, rung) for rung in range(len(RUNGS))]
        held = [one.low <= gain <= one.high for one in results if not one.refused]
        heads += held[-1:]
        every += held
    return sum(heads) / len(heads), sum(every) / len(every)


@pytest.mark.parametrize("gain", [1.0, 0.6, 1.5])
def test_a_known_gain_is_within_its_interval(gain: float) -> None:
    head, every = coverage(gain, 100)
    assert head >= 0.90 and every >= 0.92  # 0.95 less two deviations of 100 draws


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("gain", [1.0, 0.6, 1.5, 1.9])
def test_a_known_gain_is_within_its_interval_95_times_in_100(gain: float, seeds: int) -> None:
    head, every = coverage(gain, 1000, seeds)
    assert head >= 0.935 and every >= 0.94
    assert every <= 0.985  # not by being far too wide


def test_without_noise_the_gain_is_exact_but_for_interpolation() -> None:
    baseline, arm = drawn(np.random.default_rng(0), 1.5, deviation=0.0)
    for rung in range(3):
        assert gains.at_rung(baseline, arm, rung).gain == pytest.approx(1.5, rel=0.01)
    assert "below all" in gains.at_rung(baseline, arm, 3).refused


def test_the_wider_intervals_of_percentiles_would_not_hold() -> None:
    """The control: resampled seeds' percentiles, which the module does not use, miss the gain too often."""
    rng, held = np.random.default_rng(3), []
    for _ in range(60):
        baseline, arm = drawn(rng, 0.8)
        results = []
        for _ in range(60):
            pick = rng.integers(3, size=3)
            one = Curve(RUNGS * UNIT, baseline.losses[pick]), Curve(RUNGS * UNIT, arm.losses[pick])
            x = one[0].where(float(one[1].means[2]), float(one[1].x[2]))
            results.append(math.exp(x - one[1].x[2]) if x is not None else 1.0)
        held.append(np.percentile(results, 2.5) <= 0.8 <= np.percentile(results, 97.5))
    assert np.mean(held) < 0.9


def test_the_baselines_own_gain_is_one() -> None:
    baseline, _ = drawn(np.random.default_rng(1), 1.0)
    for rung in range(len(RUNGS)):
        result = gains.at_rung(baseline, baseline, rung)
        assert result.gain == pytest.approx(1, abs=1e-9) and not result.refused
        assert result.low == pytest.approx(1, abs=1e-6) and result.high == pytest.approx(1, abs=1e-6)
    # Also where its mean turns up, so that isotonic regression flattens it.
    bumpy = Curve(RUNGS * UNIT, np.array([[3.0, 2.5, 2.6, 2.2]] * 2 + [[3.0, 2.5, 2.7, 2.2]]))
    assert [gains.at_rung(bumpy, bumpy, rung).gain for rung in range(4)] == pytest.approx([1, 1, 1, 1])


def test_the_joint_fit_recovers_the_form_and_says_when_it_lacks() -> None:
    baseline, arm = drawn(np.random.default_rng(5), 1.5, deviation=0.002)
    result = gains.fit({"base": baseline, "arm": arm}, "base")
    assert result.gains is not None and result.intervals is not None
    assert result.gains["arm"] == pytest.approx(1.5, rel=0.05) and result.gains["base"] == 1
    assert result.intervals["arm"][0] <= 1.5 <= result.intervals["arm"][1] and result.lack > 0.05
    bent = Curve(RUNGS * UNIT, arm.losses + np.array([0.0, 0.2, 0.2, 0.0]))
    assert gains.fit({"base": baseline, "arm": bent}, "base").lack < 0.01
    short = Curve(RUNGS[:2] * UNIT, arm.losses[:, :2])
    assert "at least" in gains.fit({"base": short}, "base").refused


@pytest.mark.parametrize(
    "differences, half, survives",
    [
        ([-0.2, -0.2, -0.1, -0.1], 0.05, claims.SURVIVES),
        ([-0.2, -0.2, 0.1, 0.1], 0.05, claims.CROSSES),
        ([-0.2, -0.2, -0.2, 0.01], 0.05, claims.OPEN),
        ([-0.02, 0.02, -0.01, 0.01], 0.05, claims.UNRESOLVED),
    ],
)
def test_whether_the_ranking_survives_scale_in_words(differences: list[float], half: float, survives: str) -> None:
    leads = tuple(Lead(f * UNIT, d, d - half, d + half) for f, d in zip(RUNGS, differences, strict=True))
    result, words = claims.survival("h1", "h4", "budget.amount", [50, 100, 200, 400], leads)
    assert result == survives
    if survives == claims.CROSSES:
        assert "between amount 100 and amount 200" in words and "ahead of it below, behind it above" in words
        at = gains.math.exp(leads[1].flops and (math.log(2) + 2 / 3 * math.log(2)))
        assert f"near {at:.2f}T" in words  # 2e12 * 2 ** (2 / 3)


Change = Callable[[dict[str, Any]], None]


def write(directory: Path, gain: float = 1.5, seeds: int = 3, deviation: float = 0.002) -> Path:
    """Writes a sweep of two arms and four rungs as sweeps.launch writes it."""
    rng = np.random.default_rng(11)
    values, studies = [50.0, 100.0, 200.0, 400.0], []
    described = {"by": "budget.amount", "values": values, "branches": False, "tokens_per_parameter": None}
    curves = dict(zip(("base", "fast"), drawn(rng, gain, seeds, deviation), strict=True))
    for rung, value in enumerate(values):
        top = value == values[-1]
        arms = []
        for name, curve in curves.items():
            own = name if top else f"{name}@amount={value:g}"
            config = synthetic.config() | {"budget": {"kind": "steps", "amount": value}}
            arms.append({"name": own, "overrides": {}, "config": config, "rung_of": name})
            for seed in range(seeds):
                speed = 2.0 if name == "fast" else 1.0  # twice as long for the same FLOPs
                info = synthetic.run_json(seed, flops=RUNGS[rung] * UNIT, tokens=1e6 * RUNGS[rung])
                info["wall_time"] = {"train": 10.0 * RUNGS[rung] * speed}
                measured = {"loss": synthetic.loss_json(float(curve.losses[seed, rung]))}
                synthetic.write_run(directory / "runs" / own / f"seed{seed}", info=info, evals=measured, lines=[])
        study = {"name": "steps" if top else f"steps: amount {value:g}", "title": "", "question": "", "arms": arms}
        study |= {"baseline": "base" if top else None, "evals": ["loss"], "seeds": list(range(seeds)), "solved": {}}
        studies.append(study | {"ladder": described, "rung": value, "rung_of": "" if top else "steps"})
    (directory / "sweep.json").write_text(json.dumps({"schema": 1, "name": "steps", "studies": studies}))
    return directory


def test_the_command_writes_gains_and_fits_100_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert ladder.main([str(tmp_path), f"--json={tmp_path / 'out.json'}"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= ladder.WIDTH
    result = json.loads((tmp_path / "out.json").read_text())["arms"]
    assert result["base"]["gain"] == result["base"]["low"] == result["base"]["high"] == pytest.approx(1, abs=1e-6)
    fast = result["fast"]
    assert fast["low"] <= 1.5 <= fast["high"] and fast["value"] == 200 and fast["ranking_survives"] == "yes"
    assert [rung["value"] for rung in fast["rungs"]] == [50, 100, 200, 400]
    assert fast["rungs"][-1]["gain"] is None and "extrapolated" in fast["rungs"][-1]["refused"]
    assert fast["time"]["gain"] == pytest.approx(fast["gain"] / 2)
    assert fast["fit"]["gain"] == pytest.approx(1.5, rel=0.1)
    assert "the ranking survives scale" in " ".join(printed.split())


def test_the_rungs_are_no_arms_of_the_report_and_their_runs_are_its_runs(tmp_path: Path) -> None:
    (study,) = read(write(tmp_path)).studies
    assert [arm.name for arm in study.arms] == ["base", "fast"] and study.ladder is not None
    assert len(read(tmp_path).runs) == 24


def test_fewer_than_three_seeds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, seeds=2)
    assert ladder.main([str(tmp_path), f"--json={tmp_path / 'out.json'}"]) == 1
    assert "2 seeds done at every rung; an interval needs at least 3" in " ".join(capsys.readouterr().out.split())
    assert "2 seeds" in json.loads((tmp_path / "out.json").read_text())["studies"]["steps"]["refused"]


def test_a_seed_missing_at_one_rung_counts_at_none(tmp_path: Path) -> None:
    write(tmp_path, seeds=4)
    (tmp_path / "runs/fast@amount=50/seed1/eval/loss.json").unlink()
    (study,) = read(tmp_path).studies
    assert claims.results(study).arms["fast"].seeds == (0, 2, 3)


def test_every_arm_at_every_rung_is_a_claim_of_the_report_s_one_family(tmp_path: Path) -> None:
    (study,) = read(write(tmp_path, seeds=5)).studies
    whole = claimed(study)
    assert whole.ladder is not None
    leads = whole.ladder.arms["fast"].leads
    tested = [*(one.difference.p for one in whole.arms), *(lead.p for lead in leads)]
    assert whole.family == len(tested) == 5
    assert [one.p_holm for one in (*whole.arms, *leads)] == pytest.approx(holm(tested))
    own = [level.gain.low > 1 or level.gain.high < 1 for level in whole.ladder.arms["fast"].levels[:3]]
    assert own == [lead.p < 0.05 for lead in leads[:3]], "a gain other than 1 is the same claim"


def test_ladders_in_which_nothing_differs_claim_five_times_in_100_only_after_the_correction() -> None:
    rng, flops, number = np.random.default_rng(8), RUNGS * UNIT, 150
    alone, together = 0, 0
    for _ in range(number):
        curves = [Curve(flops, truth(flops) + 0.005 * rng.normal(size=(5, 4))) for _ in range(5)]
        arms = {f"a{k}": claims.Result(f"a{k}", leads=tuple(gains.leads(curves[0], curve)))
                for k, curve in enumerate(curves)}  # fmt: skip
        arms = {name: replace(one, levels=tuple(claims.Level(v, None) for v in RUNGS)) for name, one in arms.items()}
        raw = claims.Results("s", "budget.amount", "a0", arms)
        result = claims.corrected(raw, holm(claims.tested(raw)))
        alone += any(lead.resolved for one in raw.arms.values() for lead in one.leads)
        together += any(one.survives in (claims.SURVIVES, claims.CROSSES) for one in result.arms.values())
    assert alone > 0.3 * number and together <= 0.1 * number


def test_a_rate_at_the_edge_of_its_grid_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    low = sweep["studies"][1]
    choice = {"value": 0.01, "edge": "highest", "losses": []}
    low["select"] = {"field": "optimizer.learning_rate", "seeds": [9], "choices": {"fast@amount=100": choice}}
    tried = low | {"name": "tried", "selects_for": low["name"], "arms": [], "select": None, "rung_of": "", "rung": None}
    sweep["studies"].append(tried | {"ladder": None})
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    (study,) = read(tmp_path).studies
    result = claims.results(study)
    assert "0.01 is the highest tried" in result.arms["fast"].refused and not result.arms["base"].refused


def test_a_sweep_without_a_ladder_is_refused_by_name(tmp_path: Path) -> None:
    synthetic.losses(tmp_path, {"h1": [1.8, 1.9, 1.8], "h4": [1.5, 1.6, 1.7]})
    with pytest.raises(UserError, match="has no ladder; a sweep file declares one"):
        ladder.main([str(tmp_path)])


def test_the_page_has_a_section_and_figures_of_the_ladder(tmp_path: Path) -> None:
    page = build.build(write(tmp_path)).read_text()
    assert "<h3>Gain in compute</h3>" in page and "the ranking survives scale" in page
    assert {"ladder.svg", "gain.svg", "ladder.pdf"} <= {path.name for path in (tmp_path / "report").iterdir()}
    (study,) = read(tmp_path).studies
    result = claimed(study).ladder
    one, two = charts.figures(study, result)
    assert len(one.spec["datasets"]["seeds"]) == 24 and len(two.spec["datasets"]["gains"]) == 3
    assert "Not shown, outside the baseline's losses: fast at amount 400" in two.caption
