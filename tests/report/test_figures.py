"""What charts are drawn from: cut lines, axes that intervals cannot squeeze, names that stay apart."""

import itertools
import math
import re
from pathlib import Path

import altair as alt
import numpy as np
import pytest

from report.build import figures
from report.charts import effects, emphasis, export, theme, training
from report.charts.figures import cut, dashes, domain, fit, layers_of
from report.charts.grid import balanced
from report.reading.directories import read
from tests.report import synthetic


def test_a_line_is_cut_where_it_crosses_and_goes_on_where_it_returns() -> None:
    points = cut([(0, 4.0), (1, 2.0), (2, 1.0), (3, 5.0), (4, 1.0)], top=3.0)
    assert [x for x, _ in points] == pytest.approx([0.5, 0.5, 1, 2, 2.5, 2.5, 3.5, 3.5, 4])
    assert [y for _, y in points] == pytest.approx([math.nan, 3, 2, 1, 3, math.nan, math.nan, 3, 1], nan_ok=True)
    assert cut([(0, 1.0), (1, 2.0)], top=3.0) == [(0, 1.0), (1, 2.0)]
    assert cut([(0, 9.0), (1, 8.0)], top=3.0) == []


def test_an_interval_of_two_seeds_does_not_squeeze_the_means() -> None:
    low, high = domain([1.7, 1.8], [0.2, 3.3])
    assert (high - low) < 3.5 * 0.1 and low < 1.7 and high > 1.8
    rows = [{"low": 0.2, "high": 1.75}, {"low": math.nan, "high": math.nan}]
    fit(rows, (1.6, 1.9))
    assert (rows[0]["bottom"], rows[0]["top"], rows[0]["low"]) == (1.6, 1.75, 0.2)
    assert math.isnan(rows[1]["bottom"])


def test_an_axis_has_a_span_whatever_it_is_given() -> None:
    for values in ([], [math.nan], [2.0], [0.0, 0.0], [-1.0, math.inf]):
        low, high = domain(values)
        assert math.isfinite(low) and low < high


def test_colours_and_dashes_tell_many_arms_apart() -> None:
    looks = {(index % len(theme.LIGHT), *theme.dash(index)) for index in range(32)}
    assert len(looks) == 32 and len(theme.LIGHT) == len(theme.DARK) == len(theme.SHAPES) == len(set(theme.LIGHT))
    assert dashes(["a"] * 8) == [] and len(dashes([str(index) for index in range(9)])) == 1


@pytest.mark.parametrize(("panels", "room", "columns"), [(4, 3, 2), (5, 3, 3), (1, 4, 1), (7, 0, 1), (9, 4, 3)])
def test_panels_fill_their_rows_evenly(panels: int, room: int, columns: int) -> None:
    assert balanced(panels, room) == columns


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB: what protanopes, deuteranopes and tritanopes see.
SEEN = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour: str, eyes: str) -> np.ndarray:
    """CIELAB (D65) of a colour as those eyes see it."""
    srgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(SEEN[eyes]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", list(SEEN))
@pytest.mark.parametrize("palette", [theme.LIGHT, theme.DARK])
def test_any_two_colours_can_be_told_apart_whatever_the_eyes(palette: list[str], eyes: str) -> None:
    seen = [lab(colour, eyes) for colour in palette]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 12
    assert len(set(theme.SHAPES)) == len(palette), "shapes tell them apart as well"


def test_speeds_measured_under_load_are_marked_and_not_ranked() -> None:
    rows = [
        {"arm": "fast", "cost": 900.0, "quality": 1.5, "busy": True},
        {"arm": "slow", "cost": 500.0, "quality": 1.6, "busy": False},
        {"arm": "worse", "cost": 400.0, "quality": 1.7, "busy": False},
    ]
    training._label_front(rows, (400.0, 900.0), (1.4, 1.8), more=True, higher=False)
    assert [bool(row["label"]) for row in rows] == [False, True, False], "the loaded arm keeps none off the front"
    rows[0]["busy"] = False
    training._label_front(rows, (400.0, 900.0), (1.4, 1.8), more=True, higher=False)
    assert [bool(row["label"]) for row in rows] == [True, False, False]


def test_a_name_beside_the_front_covers_no_other_point_where_it_can() -> None:
    name = "num_heads=1,position.kind=rope"

    def labelled(*others: tuple[float, float]) -> str:
        rows = [{"arm": name, "cost": 650.0, "quality": 1.5}]
        rows += [{"arm": f"b{k}", "cost": cost, "quality": quality} for k, (cost, quality) in enumerate(others)]
        training._label_front(rows, (400.0, 900.0), (1.4, 1.6), more=True, higher=False)
        assert rows[0]["name"] == "num_head\N{HORIZONTAL ELLIPSIS}kind=rope" and not any(r["label"] for r in rows[1:])
        return str(rows[0]["label"])

    assert labelled((450.0, 1.58)) == "right above"
    # Points of the same cost or slower stand left of it; the name goes to the right of it, or under them.
    assert labelled((560.0, 1.505), (500.0, 1.505)) == "right above"
    rows = [{"arm": name, "cost": 880.0, "quality": 1.5}, {"arm": "b", "cost": 760.0, "quality": 1.506}]
    training._label_front(rows, (400.0, 900.0), (1.4, 1.6), more=True, higher=False)
    assert rows[0]["label"] == "left below", "no room at the right, and above it would cover the other point"


def test_of_more_than_24_arms_the_best_or_those_chosen_are_in_colour(tmp_path: Path) -> None:
    values = {
        f"arm{index:02d}": [1.7 + 0.01 * ((index * 7) % 30), 1.71 + 0.01 * ((index * 7) % 30)] for index in range(30)
    }
    (study,) = read(synthetic.losses(tmp_path / "best", values)).studies
    best = sorted(values, key=lambda name: values[name])[:8]
    assert sorted(emphasis.chosen(study)) == sorted({"arm00", *best})
    study.highlight = ["arm03", "arm29"]
    assert emphasis.chosen(study) == ["arm00", "arm03", "arm29"]
    figure = next(one for one in figures(study) if one.key == "train-loss")
    colours = [layer["encoding"]["color"] for layer in layers_of(figure.spec)]
    assert all(one["value"] == emphasis.GREY and one["condition"]["scale"]["domain"][1] == "arm03" for one in colours)
    assert "3 of 30 arms" in figure.caption and "arm04" not in re.sub(r"<path[^>]*>", "", export.svg(figure.spec))


def test_a_curve_of_two_points_is_points_and_a_curriculum_s_stages_are_marked(tmp_path: Path) -> None:
    stages = {"curriculum": [{"steps": 400, "length": 64}]}
    configuration = synthetic.config(4) | {"data": {"length": 128, "batch_size": 16, **stages}}
    for lines, marks in ((2, {"point"}), (100, {"line", "point"})):
        run = tmp_path / f"run{lines}"
        synthetic.write_run(
            run, info=synthetic.run_json(), configuration=configuration, lines=synthetic.metrics(1.7, 0, lines)
        )
        (study,) = read(run).studies
        figure = training.curves(study, "train_loss", "training loss", smooth=False)
        assert figure is not None
        assert {layer["mark"]["type"] for layer in layers_of(figure.spec)} - {"rule"} == marks
    assert figure is not None
    assert figure.spec["datasets"]["stages"] == [{"tokens": 400.0 * 64 * 16, "stage": "length 64"}]
    assert "length 64 until 410k tokens" in figure.caption


def test_a_chain_is_drawn_from_each_arm_to_the_one_that_continues_it(tmp_path: Path) -> None:
    values = {"short": [1.8, 1.81], "long": [1.7, 1.72], "longer": [1.6, 1.61], "alone": [1.9, 1.92]}
    (study,) = read(synthetic.losses(tmp_path / "chain", values)).studies
    assert effects.chains(study) is None
    for name, parent in (("long", "short"), ("longer", "long")):
        arm = study.arm(name)
        assert arm is not None
        arm.config["init_from"] = f"arm:{parent}"
    figure = effects.chains(study)
    assert figure is not None
    rows = {row["arm"]: row for row in figure.spec["datasets"]["rows"]}
    assert {name: row["stage"] for name, row in rows.items()} == {"short": 0, "long": 1, "longer": 2}
    assert [row["link"] for row in figure.spec["datasets"]["links"]] == ["short > long"] * 2 + ["long > longer"] * 2


def test_generated_retrieval_has_a_heat_map_of_its_own(tmp_path: Path) -> None:
    run = synthetic.retrieval_json(0.9)
    for cell in run["cells"]:
        cell["exact_match"] = {"correct": 1, "examples": 4, "accuracy": 0.25, "interval": [0.05, 0.7]}
    synthetic.write_run(tmp_path / "run", evals={"retrieval": run})
    (study,) = read(tmp_path / "run").studies
    titles = {one.key: one.title for one in figures(study)}
    assert titles["heat-map-exact-match"] == "Retrieval by depth and length, generated" and "heat-map" in titles


def test_every_figure_is_valid_vega_lite(tmp_path: Path) -> None:
    """Altair's own check, which building leaves out, of the finished specs without their data."""
    kinds = {"layer": alt.LayerChart, "facet": alt.FacetChart, "mark": alt.Chart}
    found = [figure for study in read(synthetic.demo(tmp_path)).studies for figure in figures(study)]
    specs = [{k: v for k, v in figure.spec.items() if k != "datasets"} for figure in found]
    for spec in specs:
        kinds[next(kind for kind in kinds if kind in spec)].from_dict(spec)
    assert len(specs) > 12
    with pytest.raises(Exception, match="not one of"):
        alt.LayerChart.from_dict(next(spec for spec in specs if "layer" in spec) | {"autosize": "wide"})
