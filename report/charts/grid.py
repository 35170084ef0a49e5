"""Charts of retrieval over its grid: the heat map by depth and length, and the share against the number of needles."""

import math
from typing import Any

import altair as alt

from report.charts.figures import Figure, colour, dashes, finish, fit, on, shape, spanning, tip
from report.charts.figures import panels as in_panels
from report.page.formats import TIMES
from report.reading.directories import Study
from report.reading.measures import (
    FEW,
    TRAINED,
    Point,
    counted,
    noun,
    pooled,
    retrieval_points,
    scaling_label,
    scaling_order,
)

PANELS = 24  # maximum panels in one figure; more do not fit a page, and cost half of a large report
MEASURES = {
    "accuracy": "teacher-forced, every token of the answer has the highest logit",
    "exact_match": "generated, token for token at its position",
    "answers_found": "generated, anywhere in the generated text",
}


def heat_map(study: Study, measure: str = "accuracy") -> Figure | None:
    """Returns retrieval by depth (downwards) and length, one panel per arm, scaling and number of needles.

    Colours always span 0 .. 1. Each cell shows the number of its answers; a dashed frame marks those with fewer than
    FEW independent ones. Depths that coincide in a short row are one cell.
    """
    rows, panels = _cells(study, measure)
    if not rows:
        return None
    order = [column for _, column in sorted({(row["length"], row["column"]) for row in rows})]
    depths = [depth for _, depth in sorted({(row["depth"], row["row"]) for row in rows})]
    x = alt.X("column:N", sort=order, title="length, tokens", axis=alt.Axis(labelAngle=0, domain=False, ticks=False))
    y = alt.Y("row:N", sort=depths, title="depth of the needle", axis=alt.Axis(domain=False, ticks=False))
    legend = alt.Legend(title="share right", format="%", values=[0, 0.25, 0.5, 0.75, 1], gradientLength=220)
    tint = alt.Color("value:Q", scale=alt.Scale(domain=[0, 1], scheme="viridis", clamp=True), legend=legend)
    tips = tip(
        ("arm:N", "arm", ""), ("label:N", "scaling", ""), ("length:Q", "tokens", ",d"), ("depth:Q", "depth", ".0%")
    )
    tips += tip(("pairs:Q", "needles or pairs", ",d"), ("value:Q", "share right", ".1%"), ("low:Q", "95% from", ".1%"))
    tips += tip(("high:Q", "to", ".1%"), ("correct:Q", "right", ",d"), ("n:Q", "of", ",d"))
    tips += tip(("worth:Q", "independent", ",.0f"))
    ink = alt.condition("datum.value > 0.6", alt.value("#10151b"), alt.value("#ffffff"))
    base = on("cells")
    measured = base.transform_filter("isValid(datum.value)")
    cells = measured.mark_rect(stroke="white", strokeWidth=1).encode(x, y, tint, tooltip=tips)
    shares = measured.mark_text(fontSize=11, dy=-5).encode(x, y, alt.Text("value:Q", format=".0%"), color=ink)
    counts = measured.mark_text(fontSize=9, dy=8).encode(x, y, alt.Text("count:N"), color=ink)
    framed = base.transform_filter("datum.few").mark_rect(fillOpacity=0, strokeWidth=2, strokeDash=[3, 2])
    framed = framed.encode(x, y, stroke=alt.value("#e8590c"))
    same = base.transform_filter("!isValid(datum.value)").mark_text(fontSize=9, color="#868e96")
    same = same.encode(x, y, alt.Text("count:N"))
    step = 58
    chart = alt.layer(cells, shares, counts, framed, same, data=alt.NamedData("cells"))
    chart = chart.properties(width=step * len(order), height=34 * len(depths))
    columns = balanced(len(panels), 760 // (step * len(order) + 60))
    spec = finish(in_panels(chart, "panel", panels, columns), {"cells": rows})
    caption = (
        f"Share of correct answers ({MEASURES[measure]}), over all seeds; n: answers. Colours always span 0 to 100%."
    )
    caption += _notes(study, rows, len(panels))
    width = step * len(order) + 60
    key, title = "heat-map", "Retrieval by depth and length"
    if measure != "accuracy":
        key, title = f"heat-map-{measure.replace('_', '-')}", f"{title}, generated"
    return Figure(key, title, caption, spec, False, width, True, len(panels))


def exact_matches(study: Study) -> Figure | None:
    """Returns `heat_map` of the rows all of whose answers are right."""
    return heat_map(study, "exact_match")


def _notes(study: Study, rows: list[dict[str, Any]], panels: int) -> str:
    words = f" Dashed frames: fewer than {FEW} independent answers, too few to rank." if any(
        row["few"] for row in rows
    ) else ""  # fmt: skip
    if any(row["value"] is None for row in rows):
        words += " Depths that coincide in a short row are one cell: `as` lists them."
    words += counted(study)
    return words + (f" Only the first {PANELS} panels are shown." if panels == PANELS else "")


def _cells(study: Study, measure: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns one row per cell, and the panels in order: by arm, then by scaling and number of needles."""
    results = [point for arm in study.arms for point in retrieval_points(arm, True, measure=measure, every=True)]
    numbers = _several(results)
    groups: dict[tuple[str, str, float, float, float], list[Point]] = {}
    order = [arm.name for arm in study.arms]
    for point in sorted(results, key=lambda one: (order.index(one.arm), scaling_order(one.scaling), one.pairs)):
        pairs = point.pairs if numbers and math.isfinite(point.pairs) else 0.0
        groups.setdefault((point.arm, point.scaling, pairs, point.length, point.depth), []).append(point)
    drawn = list(dict.fromkeys(key[:3] for key in groups))[:PANELS]
    scalings = len({scaling for _, scaling, _ in drawn}) > 1
    rows: list[dict[str, Any]] = []
    for (name, scaling, pairs, length, depth), points in groups.items():
        if (name, scaling, pairs) not in drawn:
            continue
        label = scaling_label([arm for arm in study.arms if arm.name == name], scaling)
        parts = [name, *([label] if scalings else []), *([f"{pairs:g} {noun(study)}"] if numbers else [])]
        rows += _entries(points, {"arm": name, "label": label, "panel": ", ".join(parts), "length": length}, depth)
    return rows, list(dict.fromkeys(row["panel"] for row in rows))


def _several(points: list[Point]) -> bool:
    """Returns whether an arm was evaluated, at one length, with different numbers of needles."""
    results: dict[tuple[str, float], set[float]] = {}
    for point in points:
        if math.isfinite(point.pairs):
            results.setdefault((point.arm, point.length), set()).add(point.pairs)
    return any(len(numbers) > 1 for numbers in results.values())


def _entries(points: list[Point], shared: dict[str, Any], depth: float) -> list[dict[str, Any]]:
    """Returns the cell's row, and one for each further depth that it covers."""
    one = pooled(points)
    tokens = f"{shared['length']:g}" if math.isfinite(shared["length"]) else "?"
    worth = sum(point.independent for point in points)
    cell = shared | {
        "depth": depth,
        "column": f"{tokens} ({_times(points[0].multiple)})",
        "row": f"{100 * depth:.0f}%",
        "value": one.mean,
        "low": one.low,
        "high": one.high,
        "n": one.examples,
        "worth": worth,
        "few": worth < FEW,
        "count": f"n={one.examples}",
        "correct": sum(point.correct for point in points),
        "pairs": points[0].pairs,
    }
    others = sorted({other for point in points for other in point.merged if math.isfinite(other)})
    empty = {"value": None, "few": False, "count": f"as {cell['row']}"}
    return [cell, *({**cell, "depth": other, "row": f"{100 * other:.0f}%", **empty} for other in others)]


def retrieval_by_pairs(study: Study) -> Figure | None:
    """Returns accuracy against the number of needles or pairs, one panel per arm and one line per length, or None."""
    rows: list[dict[str, Any]] = []
    for arm in study.arms:
        groups: dict[tuple[float, float], list[Point]] = {}
        for point in retrieval_points(arm, every=True):
            if point.scaling == TRAINED and math.isfinite(point.pairs) and math.isfinite(point.length):
                groups.setdefault((point.length, point.pairs), []).append(point)
        for (length, pairs), points in sorted(groups.items()):
            one = pooled(points)
            label = f"{length:g} tokens ({_times(points[0].multiple)})"
            row = {"arm": arm.name, "label": label, "length": length, "pairs": pairs}
            rows.append(row | {"value": one.mean, "low": one.low, "high": one.high, "n": one.examples})
    numbers = sorted({row["pairs"] for row in rows})
    if not _several([point for arm in study.arms for point in retrieval_points(arm, every=True)]):
        return None
    fit(rows, (0.0, 1.0))
    labels = list(dict.fromkeys(row["label"] for row in sorted(rows, key=lambda row: row["length"])))
    arms = [arm.name for arm in study.arms if any(row["arm"] == arm.name for row in rows)][:PANELS]
    rows = [row for row in rows if row["arm"] in arms]
    axis = alt.Axis(values=numbers, format="~g", grid=False)
    scale = alt.Scale(type="log", base=2, nice=False, domain=[numbers[0] / 1.1, numbers[-1] * 1.1])
    x = alt.X("pairs:Q", title=f"{noun(study)} a row", axis=axis, scale=scale)
    percent, span = alt.Axis(format="%"), spanning((0.0, 1.0))
    y = alt.Y("value:Q", title="share right", scale=span, axis=percent)
    low = alt.Y("bottom:Q", title="share right", scale=span, axis=percent)
    tint = colour(labels, field_name="label")
    tips = tip(("arm:N", "arm", ""), ("label:N", "length", ""), ("pairs:Q", noun(study), ",d"))
    tips += tip(("value:Q", "share right", ".1%"), ("low:Q", "95% from", ".1%"), ("high:Q", "to", ".1%"))
    tips += tip(("n:Q", "answers", ",d"))
    bar = on("rows").mark_rule(strokeWidth=1.2, strokeOpacity=0.7).encode(x, low, tint, y2="top:Q")
    line = on("rows").mark_line(strokeWidth=1.8).encode(x, y, tint, *dashes(labels, "label"))
    dot = on("rows").mark_point(filled=True, size=46, opacity=1)
    dot = dot.encode(x, y, tint, shape(labels, "label"), tooltip=tips)
    width = 230
    chart = alt.layer(bar, line, dot, data=alt.NamedData("rows")).properties(width=width, height=180)
    spec = finish(in_panels(chart, "arm", arms, balanced(len(arms), 3)), {"rows": rows})
    caption = (
        f"Each arm with its trained setting, over all depths; bars: 95% intervals over seeds and rows.{counted(study)}"
    )
    title = f"Retrieval against the number of {noun(study)}"
    return Figure("retrieval-by-pairs", title, caption, spec, False, width + 70, len(arms) > 1, len(arms))


def _times(multiple: float) -> str:
    """Returns a multiple of the training length in three digits; lengths in tokens give arbitrary multiples."""
    return f"{multiple:.3g}{TIMES}"


def balanced(panels: int, room: int) -> int:
    """Returns the number of panels per row so that rows are about equally full and none exceeds `room`."""
    rows = math.ceil(panels / max(1, room))
    return math.ceil(panels / rows)
