"""The answer on top of the page: one sentence a study, equal verdicts together, what failed, and what differs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from report.build import build
from report.claims import comparable, verdict
from report.claims.comparing import UNRESOLVED, Comparison, comparisons
from report.reading.directories import Study, read
from report.statistics.intervals import over_seeds, paired
from tests.report import synthetic


def study(directory: Path) -> Study:
    return read(directory).studies[0]


def change(directory: Path, run: str, **changes: object) -> None:
    path = directory / "runs" / run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    synthetic.name_again(path.parent)


def equal_arms(directory: Path, number: int, **changes: object) -> Path:
    """Writes arms of five seeds that do not differ, with deviations of 0.01 nats."""
    rng = np.random.default_rng(0)
    values = {f"a{index}": [1.7 + 0.01 * float(rng.normal()) for _ in range(5)] for index in range(number)}
    return synthetic.losses(directory, values, **changes)


def test_one_resolved_arm_is_the_headline_with_its_interval(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path, {"h1": [1.80, 1.82, 1.81], "h4": [1.837, 1.8575, 1.8465]})
    (one,) = comparisons(study(directory))
    said = verdict.headline(study(directory))
    assert said.startswith("h4 is worse than h1 by 0.037 [0.036, 0.038] nats")
    assert one.difference.low == pytest.approx(0.0358, abs=1e-4)


def test_no_arm_differs_by_more_than_a_bound_that_holds_for_all_together(tmp_path: Path) -> None:
    directory = equal_arms(tmp_path / "sweep", 10, care=0.02)
    result = study(directory)
    said = verdict.headline(result)
    words = r"None of 9 arms differs from a0 by more than ([\d.]+) nats; (\d+) seeds would show 0.02."
    match = re.fullmatch(words, said)
    assert match, said
    ends = [end for one in comparisons(result) for end in (one.difference.low, one.difference.high)]
    assert max(map(abs, ends)) <= float(match[1]) < 1.1 * max(map(abs, ends)), "rounded, and never inwards"
    assert int(match[2]) == max(one.seeds_for_care or 0 for one in comparisons(result))


def test_the_bound_holds_of_all_arms_together_as_often_as_it_says() -> None:
    """One arm of four differs by 0.01: the bound is below that in 5% of sweeps at most, the largest mean oftener."""
    rng = np.random.default_rng(1)
    wrong = control = 0
    for _ in range(400):
        base = dict(enumerate(rng.normal(1.7, 0.004, 5)))
        arms = [{seed: base[seed] + shift + rng.normal(0, 0.003) for seed in base} for shift in (0.01, 0, 0, 0)]
        estimate = over_seeds(list(base.values()))
        gaps = [paired(arm, base) for arm in arms]
        tested = [Comparison("a", "b", "loss", gap, estimate, estimate, UNRESOLVED) for gap in gaps]
        wrong += verdict.largest(tested) < 0.01
        control += max(abs(gap.mean) for gap in gaps) < 0.01
    assert wrong <= 0.05 * 400 < control, (wrong, control)


def test_equal_verdicts_are_one_line_with_details(tmp_path: Path) -> None:
    result = verdict.groups(study(equal_arms(tmp_path / "sweep", 7)))
    (group,) = [one for one in result if one.verdict == "not resolved"]
    assert group.text == "6 arms: no difference of loss from a0 resolved. Arms: a1, a2, a3, a4, a5, a6."
    assert len(group.details) == 6 and all("no difference resolved" in one.text for one in group.details)


def test_what_failed_stands_under_the_answer_with_reason_and_log(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.80, 1.82, 1.81], "h4": [1.77, 1.788, 1.779]})
    change(directory, "h4/seed2", status="failed", error="Traceback\nValueError: out of <memory>")
    (directory / "runs" / "h4" / "seed2" / "log.txt").write_text("x")
    page = build(directory).read_text()
    top = page[page.index('class="verdict"') : page.index("<h3>What is shown")]
    assert "h4, seed 2: ValueError: out of &lt;memory&gt;" in top
    assert 'href="../runs/h4/seed2/log.txt"' in top and "h1, seed" not in top


def test_parameters_that_follow_from_what_varies_are_told_apart_from_accidents(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.80, 1.82], "h4": [1.77, 1.788]})
    for seed in (0, 1):
        change(directory, f"h4/seed{seed}", parameters={"total": 160000}, attention_kernel="xla", dtype="bfloat16")
    result = comparable.differing(study(directory))
    assert result is not None and result.reference == "h1"
    assert result.asked == ["model.num_heads", "parameters"] and result.accidents == ["kernel", "dtype"]
    assert result.rows[0][1] == {"model.num_heads": "2", "parameters": "+14.6%", "kernel": "xla", "dtype": "bfloat16"}
    # With one config for both, the same difference is an accident.
    sweep = json.loads((directory / "sweep.json").read_text())
    for arm in sweep["studies"][0]["arms"]:
        arm |= {"config": synthetic.config(4), "overrides": {}}
    (directory / "sweep.json").write_text(json.dumps(sweep))
    result = comparable.differing(study(directory))
    assert result is not None and result.asked == [] and result.accidents == ["kernel", "dtype", "parameters"]


def test_how_an_arm_is_evaluated_is_no_field_that_the_study_varies(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.80, 1.82], "h4": [1.77, 1.788]})
    assert comparable.swept(study(directory)) == ["model.num_heads"]
    sweep = json.loads((directory / "sweep.json").read_text())
    arm = sweep["studies"][0]["arms"][1]
    for values in (arm["config"], arm["overrides"]):
        values.setdefault("eval", {})["scalings"] = ["yarn"]
    (directory / "sweep.json").write_text(json.dumps(sweep))
    assert comparable.swept(study(directory)) == ["model.num_heads"]


def test_speeds_timed_under_load_are_marked(tmp_path: Path) -> None:
    directory = synthetic.losses(tmp_path / "sweep", {"h1": [1.80, 1.82], "h4": [1.77, 1.788]})
    for arm, load in (("h1", 2.1), ("h4", 9.0)):
        speeds = synthetic.throughput_json() | {"device": {"kind": "cpu", "cores": 2, "load": [load, 1.0, 1.0]}}
        for seed in (0, 1):
            run = directory / "runs" / arm / f"seed{seed}"
            (run / "eval" / "throughput.json").write_text(json.dumps(speeds))
            synthetic.name_again(run)
    result = comparable.differing(study(directory))
    assert result is not None and result.accidents == ["load"] and result.rows[0][1]["load"] == "9 on 2 cores"
