"""What charts are drawn from: cut lines, axes that intervals cannot squeeze, names that stay apart."""

import math

import pytest

from report import theme
from report.charts_grid import balanced
from report.figures import cut, dashes, domain, fit


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
