"""Steps and tokens to a target loss: interpolated, and not reached is a value of its own."""

import csv
import json
import math
from pathlib import Path

import pytest

import report
from report.build import build
from report.reading import target
from report.reading.directories import Arm, Run, read
from tests.report import synthetic


def run(losses: list[float], seed: int = 0) -> Run:
    lines = [{"step": 100 * (i + 1), "tokens": 6400 * (i + 1), "val_loss": loss} for i, loss in enumerate(losses)]
    lines += [{"step": 150, "tokens": 9600, "train_loss": 0.1}]  # a line without a validation
    return Run("a", seed, Path(), "done", metrics=sorted(lines, key=lambda line: line["step"]))


def test_the_step_is_interpolated_where_the_loss_first_reaches_the_target() -> None:
    result = target.of_run(run([3.0, 2.0, 2.6, 1.0]), 2.5)
    assert result is not None and not result.censored and not result.first
    assert (result.steps, result.tokens) == (150, 9600)
    exact = target.of_run(run([3.0, 2.5]), 2.5)
    assert exact is not None and exact.steps == 200
    early = target.of_run(run([2.0, 1.0]), 2.5)
    assert early is not None and early.first and early.steps == 100


def test_a_run_that_never_reaches_it_is_censored_and_counted() -> None:
    result = target.of_run(run([3.0, 2.8]), 2.5)
    assert result is not None and result.censored and result.until == 200 and math.isinf(result.tokens)
    assert target.of_run(Run("a", 0, Path(), "done"), 2.5) is None
    arm = Arm("a", {}, {}, [run([3.0, 2.0], 0), run([3.0, 2.8], 1), run([3.0, 2.9], 2)])
    reached = target.of_arm(arm, 2.5)
    assert len(reached) == 3 and math.isinf(target.median(reached, "steps"))  # most did not: no number may hide that
    assert target.median(reached[:1], "steps") == 150


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    synthetic.losses(tmp_path, {"h1": [1.8, 1.81, 1.82], "h4": [1.5, 1.51, 1.52]})
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    sweep["studies"][0]["target"] = 2.5
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    for seed in range(3):
        for arm, last in (("h1", 2.6), ("h4", 2.0)):
            lines = [{"step": 10 * i, "tokens": 640 * i, "val_loss": loss} for i, loss in ((1, 3.0), (2, last))]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / "runs" / arm / f"seed{seed}" / "metrics.jsonl").write_text(text)
    return tmp_path


def test_the_report_has_it_as_a_measure_like_others(directory: Path) -> None:
    build(directory)
    rows = {row["arm"]: row for row in csv.DictReader((directory / "report" / "table.csv").read_text().splitlines())}
    assert rows["h1"]["steps_to_target"] == "not reached" and rows["h1"]["target_not_reached"] == "3"
    assert float(rows["h4"]["steps_to_target"]) == 15 and float(rows["h4"]["tokens_to_target"]) == 960
    table = (directory / "report" / "table.md").read_text()
    assert "not reached by step 20, 0 of 3 reached" in table and "15 steps, 3 of 3 reached" in table
    frame = report.load(directory)
    steps = frame[frame.measure == "steps_to_target"].set_index(["arm", "seed"])
    assert math.isinf(steps.value["h1", 0]) and steps.low["h1", 0] == 20 and steps.value["h4", 2] == 15
    assert read(directory).studies[0].target == 2.5
