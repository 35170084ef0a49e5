"""Answers sorted into cells: nothing lost, nothing counted twice."""

import numpy as np
import pytest

from eval.quality import cells


def test_cells_add_up_to_the_whole():
    generator = np.random.default_rng(0)
    forced = cells.Answers(generator.random(500), generator.random(500) < 0.7, generator.random(500))
    generated = forced.at(np.arange(500) % 5 == 0)
    result = cells.by_depth(forced, generated, cells.centres(5))
    whole = cells.overall(forced, generated)
    assert [cell["depth"] for cell in result] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert sum(cell["examples"] for cell in result) == whole["examples"] == 500
    assert sum(cell["correct"] for cell in result) == whole["correct"] == forced.correct.sum()
    assert sum(cell["exact_match"]["examples"] for cell in result) == whole["exact_match"]["examples"] == 100
    assert whole["loss"] == pytest.approx(forced.loss.mean())


def test_an_answer_goes_to_the_bin_it_lies_in():
    forced = cells.Answers(np.array([0.0, 0.19, 0.21, 0.99]), np.array([True, True, False, True]))
    result = cells.by_depth(forced, None, cells.centres(5))
    assert [(c["depth"], c["correct"], c["examples"]) for c in result] == [(0.1, 2, 2), (0.3, 0, 1), (0.9, 1, 1)]
    assert result[0]["exact_match"] is None


def test_depths_may_be_points():
    forced = cells.Answers(np.array([0.0, 0.5, 1.0]), np.array([True, False, True]))
    assert [c["correct"] for c in cells.by_depth(forced, None, np.linspace(0, 1, 3))] == [1, 0, 1]


def test_no_answers():
    nothing = cells.Answers(np.zeros(0), np.zeros(0, bool), np.zeros(0))
    assert cells.by_depth(nothing, None, cells.centres(3)) == []
    assert cells.overall(nothing, nothing)["accuracy"] is None


def test_intervals_are_wilsons():
    forced = cells.Answers(np.zeros(20), np.zeros(20, bool))
    assert cells.overall(forced, None)["interval"] == pytest.approx([0, 0.1611], abs=1e-4)


def test_a_row_is_right_where_its_every_answer_is():
    row = np.array([7, 7, 3, 3, 9])
    forced = cells.Answers(np.zeros(5), np.array([True, True, True, False, True]), None, row)
    assert forced.rows["examples"] == 3 and forced.rows["correct"] == 2
    assert forced.at(row != 9).rows["correct"] == 1
    assert cells.Answers(np.zeros(2), np.ones(2, bool)).rows is None
    assert cells.Answers(np.zeros(0), np.zeros(0, bool), None, np.zeros(0, int)).rows["examples"] == 0


def test_cells_say_when_they_are_too_small_to_rank():
    assert cells.Answers(np.zeros(49), np.zeros(49, bool)).counts["few"]
    assert not cells.Answers(np.zeros(50), np.zeros(50, bool)).counts["few"]


def test_records_are_every_answer():
    message = np.array(["12", "34"], object)
    forced = cells.Answers(
        np.array([0.0, 1.0]), np.array([True, False]), np.array([0.5, 2.0]), np.array([4, 5]), reference=message
    )
    generated = cells.Answers(
        np.array([1.0]),
        np.array([False]),
        None,
        np.array([5]),
        np.array([True]),
        message[1:],
        np.array(["a 34"], object),
    )
    result = list(cells.records(forced, generated))
    shared = {"row": 5, "depth": 1.0, "distance": None, "correct": False, "reference": "34"}
    assert result[1] == {"answer": "teacher_forced", **shared, "loss": 2.0, "found": None, "said": None}
    assert result[2] == {"answer": "generated", **shared, "loss": None, "found": True, "said": "a 34"}
    assert len(result) == 3


def test_the_share_of_answers_found_is_counted_beside_what_stands_at_its_place():
    row, right = np.array([0, 0, 1, 1]), np.array([True, False, False, False])
    given = cells.Answers(np.zeros(4), right, None, row, found=np.array([True, True, True, False]))
    whole = cells.overall(given, given)
    assert whole["exact_match"]["correct"] == 1 and whole["answers_found"]["correct"] == 3
    assert whole["answers_found"]["rows"]["correct"] == 1 and whole["exact_match"]["rows"]["correct"] == 0


def test_depths_that_a_short_row_cannot_tell_apart_are_one_cell_that_says_so():
    forced = cells.Answers(np.array([0.0, 1.0]), np.array([True, False]))
    first, last = cells.by_depth(forced, None, np.linspace(0, 1, 3), {0: [0.5]})
    assert first["merged"] == [0.5] and "merged" not in last
