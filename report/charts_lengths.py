"""Charts over length: loss and retrieval, by arm and by RoPE scaling."""

from collections.abc import Callable
from typing import Any

import altair as alt

from report.charts_grid import PANELS, balanced
from report.figures import (
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
from report.figures import panels as in_panels
from report.measures import (
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
)
from report.reading import Arm, Study
from report.statistics import Estimate

LOSS_INTERVAL = "bars: 95% t-interval over seeds (over tokens where there is one seed)"
SHARE_INTERVAL = "bars: 95% interval over the rows of all seeds"


def loss_by_length(study: Study) -> Figure | None:
    """Returns the loss against length under each arm's own setting."""
    rows = _rows(study, loss_points, mean_loss, [TRAINED])
    caption = f"Each arm as it was trained, dots: means over seeds; {LOSS_INTERVAL}."
    return _by_arm(study, rows, "loss-by-length", "Loss against length", _loss_label(study), caption)


def retrieval_by_length(study: Study) -> Figure | None:
    """Returns retrieval accuracy against length under each arm's own setting."""
    rows = _rows(study, retrieval_points, pooled, [TRAINED])
    caption = f"Each arm as it was trained; {SHARE_INTERVAL}.{counted(study)}"
    return _by_arm(study, rows, "retrieval-by-length", "Retrieval against length", "share right", caption, share=True)


def loss_by_scaling(study: Study) -> Figure | None:
    """Returns the loss against length, a panel an arm and a line a RoPE scaling applied at evaluation only."""
    rows = _rows(study, loss_points, mean_loss, None)
    caption = f"RoPE scalings applied at evaluation only, without any tuning; {LOSS_INTERVAL}."
    caption += " Scalings of one run share its seed: the paired differences in the words above are narrower."
    return _by_scaling(study, rows, "loss-by-scaling", "Loss by RoPE scaling", _loss_label(study), caption)


def retrieval_by_scaling(study: Study) -> Figure | None:
    """Returns retrieval accuracy against length, a panel an arm and a line a RoPE scaling."""
    rows = _rows(study, retrieval_points, pooled, None)
    caption = f"RoPE scalings applied at evaluation only, without any tuning; {SHARE_INTERVAL}."
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
    """Returns a row for each arm, scaling and length (of the scalings named; None: all)."""
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
            rows.append(row | {"value": one.mean, "low": one.low, "high": one.high, "seeds": seeds, "n": one.examples})
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
    bar = on(rows_name).mark_rule(strokeWidth=1.2, strokeOpacity=0.7).encode(x, low, tint, y2="top:Q")
    line = on(rows_name).mark_line(strokeWidth=1.8).encode(x, y, tint, *dashes(names, field))
    dot = (
        on(rows_name).mark_point(filled=True, size=46, opacity=1).encode(x, y, tint, shape(names, field), tooltip=tips)
    )
    return alt.layer(bar, line, dot)


def _by_arm(
    study: Study, rows: list[dict[str, Any]], key: str, title: str, what: str, caption: str, share: bool = False
) -> Figure | None:
    if len({row["multiple"] for row in rows}) < 2:
        return None
    names = [arm.name for arm in study.arms]
    for row in rows:
        row["place"] = row["multiple"] * dodge(names.index(row["arm"]), len(names))
        row["label"] = scaling_label([arm for arm in study.arms if arm.name == row["arm"]], row["scaling"])
    x, scale = _axes(rows, share)
    chart = sized(_lines("rows", names, "arm", x, scale, what, share))
    return Figure(key, title, caption, finish(chart, {"rows": rows}))


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
        return Figure(key, title, caption, finish(sized(lines), {"rows": rows}), arms_legend=False)
    width = 210
    order = [arm.name for arm in panels]
    chart = lines.properties(width=width, height=180, data=alt.NamedData("rows"))
    spec = finish(in_panels(chart, "arm", order, balanced(len(panels), 3)), {"rows": rows})
    return Figure(key, title, caption, spec, False, width + 70, wide=True, panels=len(panels))
