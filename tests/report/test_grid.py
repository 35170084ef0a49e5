"""What a report shows of the grid: numbers of needles, cells too small to rank, effective lengths, both protocols."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from report.charts import grid, lengths
from report.page import table
from report.reading import frames
from report.reading.directories import read
from report.reading.measures import pooled, retrieval_points
from report.statistics.intervals import wilson
from tests.report.synthetic import loss_json, losses


def share(correct: int, examples: int, independent: float) -> dict[str, Any]:
    return {"correct": correct, "examples": examples, "accuracy": correct / examples, "independent": independent}


def entry(length: int, pairs: int, counts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"length": length, "multiple": length / 64, "scaling": "trained", "pairs": pairs, **counts, **more}


def swept(directory: Path, retrieval: dict[str, Any], loss: dict[str, Any] | None = None) -> Any:
    """A sweep of one arm and one seed with these evaluations."""
    losses(directory, {"one": [1.5]})
    place = directory / "runs/one/seed0/eval"
    place.joinpath("retrieval.json").write_text(
        json.dumps({"eval": "retrieval", "task": "niah_multivalue", **retrieval})
    )
    if loss is not None:
        place.joinpath("loss.json").write_text(json.dumps(loss))
    return read(directory).studies[0]


GRID = {
    "pairs": 4,
    "by_length": [
        entry(64, 1, share(60, 64, 64.0)),
        entry(64, 4, share(200, 256, 70.0), exact_match=share(128, 256, 64.0), answers_found=share(192, 256, 64.0)),
        entry(128, 1, share(32, 64, 64.0)),
        entry(128, 4, share(64, 256, 64.0)),
    ],
    "cells": [
        entry(64, 1, share(60, 64, 64.0), depth=0.0, merged=[0.5]),
        entry(64, 1, share(30, 64, 64.0), depth=1.0),
        entry(64, 4, share(100, 128, 49.0), depth=0.0),
        entry(64, 4, share(100, 128, 51.0), depth=0.5),
        entry(64, 4, share(100, 128, 51.0), depth=1.0),
    ],
    "effective_length": {"accuracy": {"trained": {"length": 64, "bounded": True}}},
    "settings": {"retrieval": {"threshold": "yarn"}},
}


def test_the_headline_is_the_runs_own_number_of_needles(tmp_path: Path) -> None:
    study = swept(tmp_path, GRID)
    assert [(p.length, p.pairs, p.correct) for p in retrieval_points(study.arms[0])] == [(64, 4, 200), (128, 4, 64)]
    assert len(retrieval_points(study.arms[0], every=True)) == 4
    (result,) = retrieval_points(study.arms[0], measure="answers_found")
    assert result.value == 0.75


def test_answers_of_one_row_do_not_narrow_the_interval(tmp_path: Path) -> None:
    points = retrieval_points(swept(tmp_path, GRID).arms[0])
    one = pooled(points[:1])
    expected = wilson(70 * 200 / 256, 70)
    assert (one.low, one.high, one.examples) == pytest.approx((expected.low, expected.high, 256))
    assert one.high - one.low > 1.8 * (wilson(200, 256).high - wilson(200, 256).low)


def test_the_heat_map_has_a_panel_for_each_number_and_marks_cells_too_small_to_rank(tmp_path: Path) -> None:
    study = swept(tmp_path, GRID)
    figure = grid.heat_map(study)
    assert figure is not None and figure.panels == 2
    cells = {(row["panel"], row["row"]): row for row in figure.spec["datasets"]["cells"]}
    assert cells["one, 4 needles", "0%"]["few"] and not cells["one, 4 needles", "50%"]["few"]
    assert cells["one, 1 needles", "50%"] | {"value": None, "count": "as 0%"} == cells["one, 1 needles", "50%"]
    assert "fewer than 50 independent" in figure.caption and "Colours always span 0 to 100%" in figure.caption
    framed = [layer for layer in figure.spec["spec"]["layer"] if "datum.few" in json.dumps(layer)]
    assert len(framed) == 1 and framed[0]["mark"]["strokeDash"]
    assert grid.heat_map(study, "answers_found") is None  # no cell was generated


def test_retrieval_is_drawn_against_the_number_of_needles(tmp_path: Path) -> None:
    figure = grid.retrieval_by_pairs(swept(tmp_path, GRID))
    assert figure is not None
    drawn = {(row["length"], row["pairs"]): row["value"] for row in figure.spec["datasets"]["rows"]}
    assert drawn == pytest.approx({(64, 1): 0.9375, (64, 4): 0.78125, (128, 1): 0.5, (128, 4): 0.25})
    assert figure.spec["spec"]["layer"][1]["encoding"]["y"]["scale"]["domain"] == [0, 1]


@pytest.mark.parametrize(
    ("length", "bounded", "threshold", "cell", "note"),
    [
        (64, True, "yarn", "64", "tokens, accuracy at least 80% (yarn)"),
        (128, False, "ruler", "\N{GREATER-THAN OR EQUAL TO}128", "tokens, accuracy above 85.6% (ruler)"),
        (0, True, "0.5", "0", "tokens, accuracy at least 50%"),
    ],
)
def test_the_table_has_the_effective_length_and_names_its_threshold(
    tmp_path: Path, length: int, bounded: bool, threshold: str, cell: str, note: str
) -> None:
    results = {"effective_length": {"accuracy": {"trained": {"length": length, "bounded": bounded}}}}
    study = swept(tmp_path, GRID | results | {"settings": {"retrieval": {"threshold": threshold}}})
    built = table.build(study)
    place = [column.key for column in built.columns].index("effective")
    assert built.columns[place].note == note and built.rows[0][1][place].text == cell
    assert built.raw[0]["effective_length"] == length


def test_losses_in_long_windows_stand_beside_those_in_sliding_ones(tmp_path: Path) -> None:
    loss = loss_json(1.5)
    for raw in loss["by_length"]:
        raw["sliding"] = {"stride": 16, "loss": 2.0, "interval": [1.9, 2.1], "tokens": 100}
    study = swept(tmp_path, GRID, loss)
    figure = lengths.loss_by_protocol(study)
    assert figure is not None
    rows = figure.spec["datasets"]["rows"]
    assert {row["protocol"]: row["value"] for row in rows if row["multiple"] == 1} == {
        "one long window": loss["by_length"][0]["loss"], "sliding windows": 2.0
    }  # fmt: skip
    assert "resolve" not in figure.spec or "scale" not in figure.spec["resolve"]  # one scale for both panels
    assert lengths.loss_by_protocol(swept(tmp_path, GRID, loss_json(1.5))) is None


def test_the_loss_by_position_goes_on_to_the_end_of_the_longest_rows(tmp_path: Path) -> None:
    loss = loss_json(1.5)
    for raw in loss["by_length"]:
        raw["by_position"] = {"start": [0, raw["length"] - 8], "end": [8, raw["length"]], "loss": [2.0, 1.0]}
    figure = lengths.loss_by_position_beyond(swept(tmp_path, GRID, loss))
    assert figure is not None and "rows of 512 tokens" in figure.caption
    assert [row["position"] for row in figure.spec["datasets"]["rows"]] == [4.5, 508.5]
    assert figure.spec["datasets"]["edges"] == [{"position": 128}]


def test_every_measure_and_number_of_needles_is_among_the_results(tmp_path: Path) -> None:
    swept(tmp_path, GRID)
    result = frames.results(read(tmp_path))
    kinds = result.groupby("measure").size()
    assert kinds["retrieval_by_length"] == 4 and kinds["retrieval_by_depth"] == 5
    assert kinds["exact_match_by_length"] == kinds["answers_found_by_length"] == 1
    row = result[result.measure == "answers_found_by_length"].iloc[0]
    assert (row["pairs"], row["value"], row["independent"]) == (4, 0.75, 64) and math.isfinite(row["low"])
