"""The figures of a study's page: verdicts as a forest plot, and means against what varies; SVG from report/charts."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from report.charts import export, theme
from report.charts.figures import both_ends, colour, dodge, domain, finish, fit, on, shape, sized, spanning
from report.page.formats import MINUS
from report.statistics.intervals import Estimate, over_seeds
from report.statistics.shares import over_seeds as share_over_seeds
from studies.results import Results
from studies.spec import MEASURES, SHARES, Cell, Chart
from studies.verdicts import MISSING, OPEN, Verdict

ROW, LABEL = 17, 230  # pixels of an ordering's row, and of its name beside it


def forest(found: Sequence[Verdict], share: bool) -> str | None:
    """Returns the differences of a study's orderings with their intervals, of shares or of losses; None for none."""
    shown = [(index, one) for index, one in enumerate(found, 1) if one.verdict != MISSING and one.share == share]
    rows = [_row(index, one) for index, one in shown]
    if not rows:
        return None
    ends = domain([0.0, *(row["mean"] for row in rows)], both_ends(rows))
    fit(rows, ends)
    axis = alt.Axis(labelLimit=LABEL, labelFontSize=9.5, labelOverlap=False, grid=False)
    y = alt.Y("arm:N", sort=[row["arm"] for row in rows], title=None, axis=axis)
    title = "points" if share else "nats/token"
    x, bottom = (alt.X(name, title=title, scale=spanning(ends)) for name in ("mean:Q", "bottom:Q"))
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(strokeDash=[4, 3]).encode(alt.X("at:Q", scale=spanning(ends)))
    bar = on("rows").mark_rule(strokeWidth=1.8, color=theme.LIGHT[0]).encode(bottom, y, x2="top:Q")
    middle = on("rows").mark_point(filled=True, opacity=1, size=62, color=theme.LIGHT[0])
    claimed = middle.transform_filter("datum.open == false").encode(x, y)
    hollow = on("rows").mark_point(filled=True, fill="white", stroke=theme.LIGHT[0], opacity=1, size=46)
    unclaimed = hollow.transform_filter("datum.open == true").encode(x, y)
    chart = alt.layer(zero, bar, claimed, unclaimed).properties(width=theme.WIDTH, height=ROW * len(rows) + 10)
    return export.svg(finish(chart, {"rows": rows, "zero": [{"at": 0.0}]}))


def _row(index: int, one: Verdict) -> dict[str, Any]:
    factor, gap = 100.0 if one.share else 1.0, one.difference
    name = f"{index}. {name_of(one.ordering.cell)} {MINUS} {name_of(one.ordering.against)}"
    if one.ordering.cell.length and one.ordering.cell.length == one.ordering.against.length:
        name += f" at {one.ordering.cell.length}"
    shown = {"mean": factor * gap.mean, "low": factor * gap.low, "high": factor * gap.high}
    return {"arm": name, **shown, "open": one.verdict == OPEN}


def name_of(cell: Cell) -> str:
    """Returns a cell's arm, and its scaling where it is not the run's own."""
    return cell.arm if cell.scaling == "trained" else f"{cell.arm} {cell.scaling}"


def lines(chart: Chart, results: Results) -> str | None:
    """Returns a chart of means against a number; None where nothing of it was measured."""
    rows = [row for index, name in enumerate(chart.lines) for row in _points(chart, name, index, results)]
    if not rows:
        return None
    names = list(chart.lines)
    ends = domain((row["mean"] for row in rows), both_ends(rows))
    fit(rows, ends)
    numbers = sorted({row["at"] for row in rows})
    axis = alt.Axis(values=numbers, format="~s" if numbers[-1] >= 10_000 else "~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False, domain=[numbers[0] / 1.15, numbers[-1] * 1.15])
    if not chart.log_x:
        margin = 0.06 * ((numbers[-1] - numbers[0]) or 1.0)
        scale = spanning((numbers[0] - margin, numbers[-1] + margin))
    x = alt.X("x:Q", title=chart.x, scale=scale, axis=axis)
    what = MEASURES[next(iter(next(iter(chart.lines.values())).values())).measure]
    y, bottom = (alt.Y(name, title=what, scale=spanning(ends)) for name in ("mean:Q", "bottom:Q"))
    line = on("rows").mark_line(strokeWidth=1.6).encode(x, y, colour(names))
    bar = on("rows").mark_rule(strokeWidth=1.4).encode(x, bottom, colour(names), y2="top:Q")
    dots = on("rows").mark_point(filled=True, opacity=1, size=46).encode(x, y, colour(names), shape(names))
    return export.svg(finish(sized(alt.layer(line, bar, dots)), {"rows": rows}))


def _points(chart: Chart, name: str, index: int, results: Results) -> list[dict[str, Any]]:
    rows = []
    for at, cell in chart.lines[name].items():
        one = estimate(results, cell)
        if math.isfinite(one.mean):
            x = at * dodge(index, len(chart.lines)) if chart.log_x else at
            rows.append({"arm": name, "x": float(x), "at": at, "mean": one.mean, "low": one.low, "high": one.high})
    return rows


def estimate(results: Results, cell: Cell) -> Estimate:
    """Returns a cell's mean with its interval over seeds."""
    if cell.measure in SHARES:
        return share_over_seeds(results.shares(cell).values())
    return over_seeds(results.values(cell).values())
