"""Shared parts of the charts: the figure record, channels for arms, domains and Vega-Lite plumbing."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from report.charts import theme

SHOWN = "length(shown) == 0 || indexof(shown, datum.arm) >= 0"  # `shown` is set by the page's arm switches

NAMED = 40  # names listed in a legend; more would be taller than the chart, and colours repeat five times


@dataclass
class Figure:
    """One figure of a study: a Vega-Lite spec with its title and caption."""

    key: str  # file name after the study's
    title: str
    caption: str
    spec: dict[str, Any]
    arms_legend: bool = True  # the legend shows only arms, which the page's switches do as well
    panel_width: int = 0  # for charts with panels: pixels of one, so that the page can choose how many fit in a row
    wide: bool = False  # takes the page's full width
    panels: int = 1
    lines: dict[str, Any] | None = None  # for curves: the source of `seeds` and `means`, for the page
    files: list[str] = field(default_factory=list)


def finish(chart: Any, data: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns the chart as a spec with its named data sets; numbers that are not finite become null."""
    spec = chart.to_dict(validate=False)
    spec.pop("config", None)
    spec["params"] = [*spec.get("params", []), {"name": "shown", "value": []}]
    if "facet" in spec:
        _inherit(spec["spec"])
    _legend(spec, data.get("means") or [row for rows in data.values() for row in rows])
    spec["datasets"] = {name: [_clean(row) for row in rows] for name, rows in data.items()}
    return spec


def _legend(spec: dict[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Limits legends of arms to those that the chart shows: an arm that failed or diverged has no entry."""
    there = {row["arm"] for row in rows if "arm" in row}
    for layer in layers_of(spec):
        for channel in ("color", "shape", "strokeDash"):
            one = layer.get("encoding", {}).get(channel, {})
            names = one.get("scale", {}).get("domain", []) if one.get("field") == "arm" else []
            shown = [name for name in names if name in there]
            if len(shown) < len(names) and one.get("legend", {}) is not None:
                one["legend"] = {**one.get("legend", {}), "values": shown}


def loggable(spec: Mapping[str, Any]) -> list[str]:
    """Returns which of x and y could be logarithmic and are not: those with only numbers above 0."""
    results = []
    for channel in ("x", "y"):
        layers = layers_of(spec)
        names = (channel, f"{channel}2")
        encoded = [layer["encoding"][name] for layer in layers for name in names if name in layer["encoding"]]
        scales = [one.get("scale") for one in encoded if one.get("type") == "quantitative"]
        fields = {one["field"] for one in encoded if "field" in one}
        linear = bool(scales) and all(scale and scale.get("type", "linear") == "linear" for scale in scales)
        rows = [row for one in spec["datasets"].values() for row in one]
        values = [row[field] for row in rows for field in fields if row.get(field) is not None]
        if linear and values and all(isinstance(value, (int, float)) and value > 0 for value in values):
            results.append(channel)
    return results


def layers_of(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the layers of a chart, or of its panels."""
    inner = spec["spec"] if "facet" in spec else spec
    return list(inner.get("layer", [inner]))


def _inherit(spec: dict[str, Any]) -> None:
    """Removes the data from panels: with data of their own, each panel would show all of it."""
    spec.pop("data", None)
    for layer in spec.get("layer", []):
        _inherit(layer)


def panels(chart: Any, by: str, order: list[str], columns: int) -> Any:
    """Returns the chart in panels by a field, in the given order, each with its own axes."""
    header = alt.Header(labelFontWeight="bold")
    faceted = chart.facet(alt.Facet(f"{by}:N", sort=order, title=None, header=header), columns=columns)
    return faceted.resolve_axis(x="independent", y="independent")


def _clean(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: (None if not math.isfinite(value) else float(f"{value:.6g}")) if isinstance(value, float) else value
        for key, value in row.items()
    }


def on(name: str) -> alt.Chart:
    """Returns a chart over a named data set whose arms can be switched off."""
    return alt.Chart(alt.NamedData(name)).transform_filter(SHOWN)


def colour(names: list[str], title: str | None = None, field_name: str = "arm") -> alt.Color:
    """Returns the colour channel: one colour per name, in the study's order and the same in every chart."""
    legend = alt.Legend(title=title) if len(names) <= NAMED else None
    return alt.Color(f"{field_name}:N", scale=alt.Scale(domain=names), legend=legend, title=title)


def shape(names: list[str], field_name: str = "arm") -> alt.Shape:
    """Returns the shape channel, so that colour is never the only difference."""
    marks = [theme.marker(index) for index in range(len(names))]
    return alt.Shape(f"{field_name}:N", scale=alt.Scale(domain=names, range=marks), title=None, **_unnamed(names))


def dashes(names: list[str], field_name: str = "arm") -> list[alt.StrokeDash]:
    """Returns the dash channel for names beyond the palette, which repeat its colours; empty if colours suffice."""
    if len(names) <= len(theme.LIGHT):
        return []
    scale = alt.Scale(domain=names, range=[theme.dash(index) for index in range(len(names))])
    return [alt.StrokeDash(f"{field_name}:N", scale=scale, title=None, **_unnamed(names))]


def _unnamed(names: list[str]) -> dict[str, Any]:
    return {} if len(names) <= NAMED else {"legend": None}


def domain(values: Iterable[float], ends: Iterable[float] = (), pad: float = 0.06) -> tuple[float, float]:
    """Returns the range of an axis: the finite values with a margin; (0, 1) if there are none.

    `ends` of intervals are included as long as they do not squeeze the values to less than about a third of the axis:
    the interval of two seeds can be ten times their distance.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    span = (high - low) or max(abs(high) * 0.01, 1e-3)
    reach = [end for end in ends if math.isfinite(end)]
    low, high = max(min([low, *reach]), low - span), min(max([high, *reach]), high + span)
    margin = (high - low) * pad or span
    return low - margin, high + margin


def spanning(ends: tuple[float, float]) -> alt.Scale:
    """Returns the linear scale of an axis that spans exactly this range."""
    return alt.Scale(domain=list(ends), zero=False, nice=False)


def fit(rows: list[dict[str, Any]], ends: tuple[float, float]) -> None:
    """Adds to each row `bottom` and `top`: its interval, clipped to the axis.

    Marks are clipped here and not with Vega's `clip`, which costs the PNG a full-size layer per line.
    """
    for row in rows:
        for end, shown in (("low", "bottom"), ("high", "top")):
            row[shown] = min(max(row[end], ends[0]), ends[1]) if math.isfinite(row[end]) else math.nan


def cut(points: Iterable[tuple[float, float]], top: float) -> list[tuple[float, float]]:
    """Returns a line without the parts above `top`: it ends where it crosses, and nan separates its pieces."""
    results: list[tuple[float, float]] = []
    before: tuple[float, float] | None = None
    for x, y in points:
        if before is not None and (y > top) != (before[1] > top):
            crossing = before[0] + (x - before[0]) * (top - before[1]) / (y - before[1])
            results += [(crossing, top), (crossing, math.nan)] if y > top else [(crossing, math.nan), (crossing, top)]
        if y <= top:
            results.append((x, y))
        before = (x, y)
    return results


def both_ends(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """Returns both ends of the rows' intervals."""
    return [row[key] for row in rows for key in ("low", "high")]


def si(ticks: int = 5) -> alt.Axis:
    """Returns an axis with labels like 0, 500k, 2M."""
    return alt.Axis(labelExpr="datum.value == 0 ? '0' : format(datum.value, '~s')", tickCount=ticks)


def tip(*fields: tuple[str, str, str]) -> list[alt.Tooltip]:
    """Returns tooltips from (field with its type, title, number format or "")."""
    return [
        alt.Tooltip(name, title=title, format=shown) if shown else alt.Tooltip(name, title=title)
        for name, title, shown in fields
    ]


def sized(chart: Any) -> Any:
    """Returns the chart at the column's width; the page scales it to its own."""
    return chart.properties(width=theme.WIDTH, height=theme.HEIGHT)


def dodge(index: int, amount: int) -> float:
    """Returns a factor that shifts arms slightly on a logarithmic axis, so that their bars do not overlap."""
    return float(2 ** (min(0.04, 0.3 / max(amount, 1)) * (index - (amount - 1) / 2)))
