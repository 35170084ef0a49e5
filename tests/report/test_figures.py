"""What charts are drawn from: cut lines, axes that intervals cannot squeeze, names that stay apart."""

import itertools
import math

import numpy as np
import pytest

from report.charts import theme
from report.charts.figures import cut, dashes, domain, fit
from report.charts.grid import balanced


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
