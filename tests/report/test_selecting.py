"""What a selection shows: loss against the value for every arm, what was chosen, and warnings in the claims."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from report import build
from report.charts import selection
from report.claims import words
from report.claims.comparable import marks
from report.reading import selecting
from report.reading.directories import Study, read
from tests.report import synthetic

LOSSES = {"h1": {0.001: 2.0, 0.01: 1.8, 0.1: None}, "h4": {0.001: 1.9, 0.01: 1.7, 0.1: 1.6}}
CHOSEN = {"h1": (0.01, ""), "h4": (0.1, "highest")}


def write(directory: Path, edge: bool = True) -> Path:
    """Writes a sweep of two arms whose learning rates were chosen on seeds 7 and 8; h1 diverged at 0.1 with one."""
    values = {"h1": [1.80, 1.82, 1.81], "h4": [1.57, 1.588, 1.579]}
    synthetic.losses(directory, values)
    sweep = json.loads((directory / "sweep.json").read_text())
    (study,) = sweep["studies"]
    tried: dict[str, Any] = study | {"name": "heads: selection", "baseline": None, "seeds": [7, 8], "arms": []}
    tried["selects_for"] = "heads"
    for index, (arm, losses) in enumerate(LOSSES.items()):
        config = study["arms"][index]["config"]
        for value, loss in losses.items():
            name = f"{arm}@learning_rate={value}"
            tried["arms"].append({"name": name, "overrides": {"optimizer.learning_rate": value}, "config": config})
            for seed in (7, 8):
                diverged = loss is None and seed == 8
                measured = {} if diverged else {"loss": synthetic.loss_json((loss or 3.0) + 0.1 * (seed - 7.5))}
                info = synthetic.run_json(seed, status="diverged" if diverged else "done")
                synthetic.write_run(directory / "runs" / name / f"seed{seed}", info=info, evals=measured, lines=[])
        for seed in range(3):
            config = synthetic.config(seed=seed) | {"optimizer": {"learning_rate": CHOSEN[arm][0]}}
            (directory / "runs" / arm / f"seed{seed}" / "config.json").write_text(json.dumps(config))
            synthetic.name_again(directory / "runs" / arm / f"seed{seed}")
    choices = {
        arm: {"value": value, "edge": side if edge else "", "losses": []} for arm, (value, side) in CHOSEN.items()
    }
    study["select"] = {"field": "optimizer.learning_rate", "values": [0.001, 0.01, 0.1], "seeds": [7, 8]}
    study["select"]["choices"] = choices
    sweep["studies"] = [tried, study]
    (directory / "sweep.json").write_text(json.dumps(sweep))
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("selection"))


@pytest.fixture
def study(directory: Path) -> Study:
    (result,) = read(directory).studies  # the selection's own runs are no study to compare
    return result


def test_every_value_of_every_arm_is_there_and_a_diverged_seed_takes_its_value_out(study: Study) -> None:
    results = {(one.arm, one.value): one.mean for one in selecting.trials(study)}
    assert math.isnan(results.pop(("h1", 0.1)))
    assert results == {(arm, v): pytest.approx(x) for arm, each in LOSSES.items() for v, x in each.items() if x}
    assert len(read(study.arms[0].runs[0].directory.parents[2]).runs) == 6 + 12


def test_the_figure_has_a_point_for_each_value_and_rings_what_was_chosen(study: Study) -> None:
    figure = selection.loss_by_value(study)
    assert figure is not None and "Diverged, not shown: h1 at 0.1." in figure.caption
    means = figure.spec["datasets"]["means"]
    assert {(row["arm"], row["value"]) for row in means} == {
        (arm, v) for arm in LOSSES for v, x in LOSSES[arm].items() if x
    }
    assert {(row["arm"], row["value"]) for row in figure.spec["datasets"]["chosen"]} == {("h1", 0.01), ("h4", 0.1)}
    assert len(figure.spec["datasets"]["seeds"]) == 10
    assert "selection" in [one.key for one in build.figures(study)]


def test_an_edge_of_the_grid_is_a_warning_that_goes_with_the_claim(study: Study) -> None:
    (claim,) = words.arms(study)
    message = "the best optimizer.learning_rate of h4, 0.1, is the highest tried: a better one may be outside"
    assert claim.verdict == "resolved" and claim.text.endswith(f"not like for like: {message}.")
    assert [mark.short for mark in marks(study)["h4"]] == ["edge of grid"]
    assert "chosen for each arm on seeds 7 and 8 (h1 0.01 and h4 0.1) and is reported on other seeds" in words.preface(
        study
    )


def test_runs_that_were_not_trained_with_what_was_chosen_are_named(tmp_path: Path) -> None:
    directory = write(tmp_path, edge=False)
    path = directory / "runs/h4/seed1/config.json"
    path.write_text(path.read_text().replace("0.1", "0.01"))
    synthetic.name_again(path.parent)
    (study,) = read(directory).studies
    (mark,) = marks(study)["h4"]
    assert mark.words == "runs of h4 trained with optimizer.learning_rate 0.01, not the 0.1 chosen"
    assert math.isnan(selecting.chosen(study, "h9"))


def selected(directory: Path, losses: dict[float, list[float]], best: float) -> Study:
    """Writes one arm whose values were tried with these losses, one a selection seed."""
    synthetic.losses(directory, {"h1": [1.0, 1.1], "h4": [1.0, 1.1]})
    sweep = json.loads((directory / "sweep.json").read_text())
    (study,) = sweep["studies"]
    tried: dict[str, Any] = study | {"name": "tried", "baseline": None, "seeds": [7, 8], "arms": []}
    tried["selects_for"] = study["name"]
    for value, each in losses.items():
        name = f"h1@learning_rate={value}"
        overrides = {"optimizer.learning_rate": value}
        tried["arms"].append({"name": name, "overrides": overrides, "config": study["arms"][0]["config"]})
        for seed, loss in zip((7, 8), each, strict=False):
            measured = {"loss": synthetic.loss_json(loss)}
            run = directory / "runs" / name / f"seed{seed}"
            synthetic.write_run(run, info=synthetic.run_json(seed), evals=measured, lines=[])
    study["select"] = {"field": "optimizer.learning_rate", "seeds": [7, 8], "choices": {"h1": {"value": best}}}
    sweep["studies"] = [tried, study]
    (directory / "sweep.json").write_text(json.dumps(sweep))
    return read(directory).studies[0]


def test_the_vertex_of_a_quadratic_is_found_between_the_grids_values(tmp_path: Path) -> None:
    at = 0.004

    def losses(value: float) -> list[float]:
        off = math.log(value / at)
        return [2 + 0.1 * (off - 0.1) ** 2, 2.05 + 0.1 * (off + 0.1) ** 2]  # seeds whose own vertices lie apart

    grid = [0.001, 0.003, 0.01, 0.03]
    study = selected(tmp_path, {value: losses(value) for value in grid}, 0.003)
    result = selecting.vertex(study, "h1")
    assert result.value == pytest.approx(at, rel=1e-6) and not result.refused
    assert result.low < at * math.exp(-0.1) and result.high > at * math.exp(
        0.1
    )  # two seeds: t with one degree of freedom
    assert "h1 0.004 [" in selecting.preface(study) and "(grid's best 0.003)" in selecting.preface(study)


def test_a_vertex_of_one_selection_seed_has_no_interval(tmp_path: Path) -> None:
    grid = {value: [2 + 0.1 * math.log(value / 0.004) ** 2] for value in (0.001, 0.003, 0.01, 0.03)}
    study = selected(tmp_path, grid, 0.003)
    result = selecting.vertex(study, "h1")
    assert result.value == pytest.approx(0.004, rel=1e-6) and math.isnan(result.low) and math.isnan(result.high)
    assert "h1 0.004 (grid's best 0.003)" in selecting.preface(study)


@pytest.mark.parametrize(
    "losses, says",
    [
        ({0.001: 2.0, 0.003: 1.9, 0.01: 1.8}, "at the grid's edge"),
        ({0.001: 2.0, 0.003: 1.9}, "fewer than three values"),
        ({0.001: 2.0, 0.003: 2.0, 0.01: 2.0, 0.03: 2.0}, "at the grid's edge"),
    ],
)
def test_a_vertex_that_cannot_be_known_is_refused(tmp_path: Path, losses: dict[float, float], says: str) -> None:
    study = selected(tmp_path, {value: [loss, loss] for value, loss in losses.items()}, 0.003)
    assert says in selecting.vertex(study, "h1").refused
