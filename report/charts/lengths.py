"""Charts over length: loss and retrieval, by arm and by RoPE scaling."""

import math
from collections.abc import Callable
from typing import Any

import altair as alt

from report.charts.figures import (
    Figure,
    both_ends,
    colour,
    dashes,
    dodge,
    domain,
    finish,
    fit,
    on,
    shape,
    sized,
    spanning,
    tip,
)
from report.charts.figures import panels as in_panels
from report.charts.grid import PANELS, balanced
from report.reading import distance
from report.reading.directories import Arm, Run, Study, dig, number, objects, text
from report.reading.frames import positions_of
from report.reading.measures import (
    TRAINED,
    Point,
    counted,
    loss_points,
    loss_unit,
    mean_loss,
    pooled,
    retrieval_points,
    scaling_label,
    scaling_order,
    sliding_points,
)
from report.statistics.intervals import Estimate, over_seeds

LOSS_INTERVAL = "bars: 95% t-interval over seeds (over tokens if there is one seed)"
SHARE_INTERVAL = "faint dots: single seeds; bars: 95% interval over seeds and rows (none with too few seeds)"


def loss_by_length(study: Study) -> Figure | None:
    """Returns the loss against length with each arm's own setting."""
    rows = _rows(study, loss_points, mean_loss, [TRAINED])
    caption = f"Each arm with its trained setting; dots: means over seeds; {LOSS_INTERVAL}."
    if local := _baseline(study, distance.loss_controls, mean_loss):
        rows += local
        caption += " Local baseline: the same models with attention windows of the training length, mean over arms, "
        caption += "with their range; only losses below it use tokens from farther back."
    return _by_arm(study, rows, "loss-by-length", "Loss against length", _loss_label(study), caption)


def loss_by_protocol(study: Study) -> Figure | None:
    """Returns the loss against length in one long window and in sliding ones, side by side on one scale.

    In rows laid end to end, longer rows have fewer tokens with a short context, so the loss falls with the length
    whether or not a model uses it (the ALiBi trap, 2108.12409, appendix B); sliding windows remove this effect.
    """
    results = {"one long window": loss_points, "sliding windows": sliding_points}
    rows = []
    for protocol, points_of in results.items():
        rows += [row | {"protocol": protocol} for row in _rows(study, points_of, mean_loss, [TRAINED])]
    measured = [row for row in rows if row["protocol"] == "sliding windows"]
    if len({row["multiple"] for row in measured}) < 2:
        return None
    arms = {row["arm"] for row in measured}
    rows = _placed(study, [row for row in rows if row["arm"] in arms])
    x, scale = _axes(rows, share=False)
    names = [arm.name for arm in study.arms if arm.name in arms]
    width = 300
    chart = _lines("rows", names, "arm", x, scale, _loss_label(study), share=False)
    chart = chart.properties(width=width, height=220, data=alt.NamedData("rows"))
    spec = finish(in_panels(chart, "protocol", list(results), 2), {"rows": _with_seeds(rows)})
    caption = "The same tokens, each arm as trained. One long window: rows laid end to end, so that longer ones "
    caption += (
        "have fewer tokens with a short context. Sliding windows: each token has nearly a whole window of context"
    )
    caption += f"at every length, so that only the effect of length remains; {LOSS_INTERVAL}."
    title = "Loss against length, by protocol"
    return Figure("loss-by-protocol", title, caption, spec, True, width + 70, wide=True, panels=2)


def loss_by_position_beyond(study: Study) -> Figure | None:
    """Returns the loss by position in the longest scored rows, with each arm's own setting."""
    rows: list[dict[str, Any]] = []
    lengths: set[float] = set()
    for arm in study.arms:
        bins: dict[float, list[float]] = {}
        for run in arm.done:
            longest = _longest(run)
            lengths.add(number(longest.get("length")))
            for middle, value in positions_of(longest.get("by_position")):
                bins.setdefault(middle, []).append(value)
        for middle, values in sorted(bins.items()):
            one = over_seeds(values)
            rows.append(
                {"arm": arm.name, "position": middle, "loss": one.mean, "low": one.low, "high": one.high,
                 "seeds": one.count}
            )  # fmt: skip
    own = {number(dig(arm.config or run.config, "data", "length")) for arm in study.arms for run in arm.done}
    if not rows:
        return None
    names = [arm.name for arm in study.arms if any(row["arm"] == arm.name for row in rows)]
    places = [row["position"] for row in rows]
    x = alt.X(
        "position:Q",
        title="position in the row, tokens",
        scale=alt.Scale(type="log", base=2, nice=False, domain=[min(places) / 1.12, max(places) * 1.12]),
    )
    ends = domain((row["loss"] for row in rows), both_ends(rows))
    fit(rows, ends)
    y, bottom = (alt.Y(name, title=_loss_label(study), scale=spanning(ends)) for name in ("loss:Q", "bottom:Q"))
    tips = tip(("arm:N", "arm", ""), ("position:Q", "position", ".0f"), ("loss:Q", "loss", ".4f"))
    tips += tip(("low:Q", "95% from", ".4f"), ("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    band = on("rows").mark_area(fillOpacity=0.13).encode(x, bottom, colour(names), y2="top:Q")
    line = on("rows").mark_line(strokeWidth=1.8).encode(x, y, colour(names), *dashes(names))
    dots = on("rows").mark_point(filled=True, size=28, opacity=1)
    dots = dots.encode(x, y, colour(names), shape(names), tooltip=tips)
    edges = [{"position": length} for length in sorted(own) if math.isfinite(length)]
    edge = alt.Chart(alt.NamedData("edges")).mark_rule(strokeDash=[4, 3], color="#868e96").encode(x)
    tokens = " or ".join(f"{length:,.0f}" for length in sorted(lengths) if math.isfinite(length))
    caption = f"Each arm with its trained setting, in rows of {tokens} tokens; dashed: the training length. "
    caption += "Mean over seeds by bins of position; band: 95% t-interval over seeds."
    spec = finish(sized(alt.layer(edge, band, line, dots)), {"rows": rows, "edges": edges})
    return Figure("loss-by-position-beyond", "Loss by position beyond the training length", caption, spec)


def _longest(run: Run) -> dict[str, Any]:
    """Returns the entry of the longest rows beyond the training length with the run's own scaling, or {}."""
    beyond = [
        raw
        for raw in objects(run.evals.get("loss"), "by_length")
        if number(raw.get("multiple")) > 1 and text(raw.get("scaling")) in ("", TRAINED) and raw.get("by_position")
    ]
    return max(beyond, key=lambda raw: number(raw.get("length")), default={})


def retrieval_by_length(study: Study) -> Figure | None:
    """Returns retrieval accuracy against length with each arm's own setting."""
    rows = _rows(study, retrieval_points, pooled, [TRAINED])
    caption = f"Each arm with its trained setting; {SHARE_INTERVAL}.{counted(study)}{distance.caption(study)}"
    if any(distance.controls(arm) for arm in study.arms):
        caption += " Its line: mean over arms, with their range."
    rows += _baseline(study, distance.controls, pooled)
    return _by_arm(study, rows, "retrieval-by-length", "Retrieval against length", "share right", caption, share=True)


def _baseline(
    study: Study, points_of: Callable[[Arm], list[Point]], estimate: Callable[[list[Point]], Estimate]
) -> list[dict[str, Any]]:
    """Returns a row per length of the local baseline: the mean over arms, with the minimum and maximum."""
    results: dict[float, list[dict[str, Any]]] = {}
    for row in _rows(study, points_of, estimate, [TRAINED]):
        results.setdefault(row["multiple"], []).append(row)
    rows = []
    for same in results.values():
        values = [row["value"] for row in same]
        ends = {"value": sum(values) / len(values), "low": min(values), "high": max(values), "each": []}
        rows.append(same[0] | ends | {"arm": distance.BASELINE, "n": sum(row["n"] for row in same)})
    return rows


def loss_by_scaling(study: Study) -> Figure | None:
    """Returns the loss against length, one panel per arm and one line per RoPE scaling applied at evaluation only."""
    rows = _rows(study, loss_points, mean_loss, None)
    caption = f"RoPE scalings applied at evaluation only, without tuning; {LOSS_INTERVAL}."
    caption += " Scalings of one run share its seed: paired differences, in the text above, have narrower intervals."
    return _by_scaling(study, rows, "loss-by-scaling", "Loss by RoPE scaling", _loss_label(study), caption)


def retrieval_by_scaling(study: Study) -> Figure | None:
    """Returns retrieval accuracy against length, one panel per arm and one line per RoPE scaling."""
    rows = _rows(study, retrieval_points, pooled, None)
    scaled = {row["arm"] for row in rows if row["scaling"] != TRAINED}
    local = _rows(study, distance.controls, pooled, [TRAINED])
    rows += [row | {"scaling": distance.BASELINE} for row in local if row["arm"] in scaled]
    caption = f"RoPE scalings applied at evaluation only, without tuning; {SHARE_INTERVAL}."
    caption += distance.caption(study)
    key, title = "retrieval-by-scaling", "Retrieval by RoPE scaling"
    return _by_scaling(study, rows, key, title, "share right", caption, share=True)


def _loss_label(study: Study) -> str:
    return f"validation loss, {loss_unit(study)}"


def _rows(
    study: Study,
    points_of: Callable[[Arm], list[Point]],
    estimate: Callable[[list[Point]], Estimate],
    scalings: list[str] | None,
) -> list[dict[str, Any]]:
    """Returns one row per arm, scaling and length (of the named scalings; None: all)."""
    rows = []
    for arm in study.arms:
        groups: dict[tuple[float, str], list[Point]] = {}
        for point in points_of(arm):
            if scalings is None or point.scaling in scalings:
                groups.setdefault(point.key, []).append(point)
        for (times, scaling), points in sorted(groups.items()):
            one = estimate(points)
            row = {"arm": arm.name, "scaling": scaling, "multiple": times, "length": points[0].length}
            seeds = len({point.seed for point in points})
            each = [float(f"{point.value:.6g}") for point in points] if seeds > 1 else []
            ends = {"value": one.mean, "low": one.low, "high": one.high}
            rows.append(row | ends | {"seeds": seeds, "n": one.examples, "each": each})
    return rows


def _axes(rows: list[dict[str, Any]], share: bool) -> tuple[alt.X, alt.Scale]:
    multiples = sorted({row["multiple"] for row in rows})
    axis = alt.Axis(values=multiples, labelExpr="format(datum.value, '~g') + '\N{MULTIPLICATION SIGN}'", grid=False)
    edge = 2**0.25
    scale = alt.Scale(type="log", base=2, nice=False, domain=[multiples[0] / edge, multiples[-1] * edge])
    x = alt.X("place:Q", title="length / training length", axis=axis, scale=scale)
    ends = (0.0, 1.0) if share else domain((row["value"] for row in rows), both_ends(rows))
    fit(rows, ends)
    return x, spanning(ends)


def _lines(rows_name: str, names: list[str], field: str, x: alt.X, scale: Any, what: str, share: bool) -> Any:
    axis = alt.Axis(format="%") if share else alt.Axis()
    y = alt.Y("value:Q", title=what, scale=scale, axis=axis)
    low = alt.Y("bottom:Q", title=what, scale=scale, axis=axis)
    shown = ".1%" if share else ".4f"
    tips = tip(("arm:N", "arm", ""), ("label:N", "scaling", ""), ("multiple:Q", "times the training length", "~g"))
    tips += tip(("length:Q", "tokens", ",d"), ("value:Q", what, shown), ("low:Q", "95% from", shown))
    tips += tip(("high:Q", "to", shown), ("seeds:Q", "seeds", ""))
    tips += tip(("n:Q", "examples", ",d")) if share else []
    tint = colour(names, field_name=field)
    part = on(rows_name).transform_filter("isValid(datum.value)")
    bar = part.mark_rule(strokeWidth=1.2, strokeOpacity=0.7).encode(x, low, tint, y2="top:Q")
    line = part.mark_line(strokeWidth=1.8).encode(x, y, tint, *dashes(names, field))
    dot = part.mark_point(filled=True, size=46, opacity=1).encode(x, y, tint, shape(names, field), tooltip=tips)
    one = alt.Y("one:Q", title=what, scale=scale, axis=axis)
    single = on(rows_name).transform_filter("isValid(datum.one)")
    single = single.mark_point(filled=True, size=12, opacity=0.45).encode(x, one, tint)
    return alt.layer(single, bar, line, dot)


def _with_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows, followed by one row per seed's own value ("one") at the same position.

    Rows, not a list that Vega-Lite flattens: in panels its optimizer gives up on that, with a warning.
    """
    whose = ("arm", "scaling", "label", "multiple", "place", "protocol")
    single = [{name: row[name] for name in whose if name in row} | {"one": one} for row in rows for one in row["each"]]
    return [{name: value for name, value in row.items() if name != "each"} for row in rows] + single


def _by_arm(
    study: Study, rows: list[dict[str, Any]], key: str, title: str, what: str, caption: str, share: bool = False
) -> Figure | None:
    if len({row["multiple"] for row in rows}) < 2:
        return None
    names = _named(study, rows)
    x, scale = _axes(_placed(study, rows), share)
    chart = sized(_lines("rows", names, "arm", x, scale, what, share))
    return Figure(key, title, caption, finish(chart, {"rows": _with_seeds(rows)}))


def _named(study: Study, rows: list[dict[str, Any]]) -> list[str]:
    """Returns the arms in order, followed by the local baseline if there is one."""
    names = [arm.name for arm in study.arms]
    return [*names, distance.BASELINE] if any(row["arm"] == distance.BASELINE for row in rows) else names


def _placed(study: Study, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds to each row the x of its arm's mark, shifted slightly from those of others, and the label of its scaling."""
    names = _named(study, rows)
    for row in rows:
        row["place"] = row["multiple"] * dodge(names.index(row["arm"]), len(names))
        row["label"] = scaling_label([arm for arm in study.arms if arm.name == row["arm"]], row["scaling"])
    return rows


def _by_scaling(
    study: Study, rows: list[dict[str, Any]], key: str, title: str, what: str, caption: str, share: bool = False
) -> Figure | None:
    scaled = {row["arm"] for row in rows if row["scaling"] != TRAINED}
    panels = [arm for arm in study.arms if arm.name in scaled][:PANELS]
    rows = [row for row in rows if row["arm"] in {arm.name for arm in panels}]
    if not rows or len({row["multiple"] for row in rows}) < 2:
        return None
    kinds = sorted({row["scaling"] for row in rows}, key=scaling_order)
    labels = {kind: scaling_label(panels, kind) for kind in kinds}
    for row in rows:
        row["place"] = row["multiple"] * dodge(kinds.index(row["scaling"]), len(kinds))
        row["label"] = labels[row["scaling"]]
    x, scale = _axes(rows, share)
    lines = _lines("rows", [labels[kind] for kind in kinds], "label", x, scale, what, share)
    if len(panels) == 1:
        return Figure(key, title, caption, finish(sized(lines), {"rows": _with_seeds(rows)}), arms_legend=False)
    width = 210
    order = [arm.name for arm in panels]
    chart = lines.properties(width=width, height=180, data=alt.NamedData("rows"))
    spec = finish(in_panels(chart, "arm", order, balanced(len(panels), 3)), {"rows": _with_seeds(rows)})
    return Figure(key, title, caption, spec, False, width + 70, wide=True, panels=len(panels))
