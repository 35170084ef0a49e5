"""The main result as figures: differences from the baseline, and the measure against the varied field."""

import math
from collections.abc import Callable
from typing import Any

import altair as alt

from report.charts import theme
from report.charts.figures import Figure, both_ends, colour, domain, finish, fit, on, shape, sized, spanning, tip
from report.claims import comparing
from report.claims.comparable import swept
from report.claims.comparing import RESOLVED, UNRESOLVED, Comparison, comparisons, values
from report.page.formats import DASH
from report.reading.directories import Arm, Study, number, text
from report.reading.measures import TRAINED, loss, loss_unit, pooled, retrieval_points
from report.reading.settings import config_of, flat
from report.statistics.intervals import Estimate

ROW = 17  # pixels of an arm's row
MOST = 60  # maximum arms of a forest plot; the table has all
LABEL = 165  # pixels of an arm's name
LOG_FROM = 8.0  # ratio of the largest to the smallest value from which an axis is logarithmic
CONTINUES = "arm:"  # prefix by which `init_from` names an arm of the sweep


def _measure(study: Study) -> str:
    return "loss" if any(math.isfinite(loss(arm).mean) for arm in study.arms) else "retrieval"


def differences(study: Study) -> Figure | None:
    """Returns the forest plot: every tested arm's difference from the baseline, sorted, with its interval and seeds."""
    measure = _measure(study)
    results = [one for one in comparisons(study) if one.measure == measure and one.verdict in (RESOLVED, UNRESOLVED)]
    tested = sorted(results, key=lambda one: one.difference.mean, reverse=measure != "loss")[:MOST]
    if not tested:
        return None
    factor = 1.0 if measure == "loss" else 100.0
    rows = [_row(one, factor) for one in tested]
    dots = [dot for one in tested for dot in _dots(study, one, factor)]
    ends = domain([0.0, *(row["mean"] for row in rows), *(dot["difference"] for dot in dots)], both_ends(rows))
    fit(rows, ends)
    unit = loss_unit(study) if measure == "loss" else "points of retrieval"
    order = [one.arm for one in tested]
    axis = alt.Axis(labelLimit=LABEL, labelFontSize=9.5, labelOverlap=False, grid=False)  # 9.5 pixels: 7.1 points
    y = alt.Y("arm:N", sort=order, title=None, axis=axis)
    title = f"difference, {unit}"
    x, bottom = (alt.X(name, title=title, scale=spanning(ends)) for name in ("mean:Q", "bottom:Q"))
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(strokeDash=[4, 3]).encode(alt.X("at:Q", scale=spanning(ends)))
    bar = on("rows").mark_rule(strokeWidth=1.8, color=theme.LIGHT[0]).encode(bottom, y, x2="top:Q")
    each = on("dots").mark_point(size=14, strokeWidth=0.9, opacity=0.75, color=theme.LIGHT[6])
    sure = comparing.confidence(study)
    tips = tip(("arm:N", "arm", ""), ("mean:Q", "difference", "+.4f"), ("low:Q", f"{sure} from", ".4f"))
    tips += tip(("high:Q", "to", ".4f"), ("p:Q", "p after Holm", ".3f"), ("seeds:Q", "seeds", ""))
    tips += tip(("shown:N", "verdict", ""))
    middle = on("rows").mark_point(filled=True, opacity=1, size=62, color=theme.LIGHT[0])
    claimed = middle.transform_filter("datum.verdict == 'resolved'").encode(x, y, tooltip=tips)
    hollow = on("rows").mark_point(filled=True, fill="white", stroke=theme.LIGHT[0], opacity=1, size=46)
    unclaimed = hollow.transform_filter("datum.verdict != 'resolved'").encode(x, y, tooltip=tips)
    seeds = each.encode(alt.X("difference:Q", title=title, scale=spanning(ends)), y)
    chart = alt.layer(zero, bar, seeds, claimed, unclaimed).properties(width=theme.WIDTH, height=ROW * len(rows) + 10)
    side = "left of 0 is better" if measure == "loss" else "right of 0 is better"
    caption = (
        f"Each arm minus {tested[0].baseline}, paired by seed; {side}. Bars: {sure} intervals, each of one comparison; "
        f"small rings: single seeds. Filled: significant at 5% after Holm ({tested[0].family} comparisons)."
    )
    if len(results) > MOST:
        caption += f" The first {MOST} of {len(results)} arms; the table lists all."
    spec = finish(chart, {"rows": rows, "dots": dots, "zero": [{"at": 0.0}]})
    return Figure("differences", "Differences from the baseline", caption, spec, False)


def _row(one: Comparison, factor: float) -> dict[str, Any]:
    gap = one.difference
    shown = {"mean": factor * gap.mean, "low": factor * gap.low, "high": factor * gap.high}
    verdict = {"verdict": one.verdict, "shown": comparing.shown(one.verdict)}
    return {"arm": one.arm, **shown, "p": one.p_holm, "seeds": len(gap.seeds), **verdict}


def _dots(study: Study, one: Comparison, factor: float) -> list[dict[str, Any]]:
    arm, baseline = study.arm(one.arm), study.arm(one.baseline)
    if arm is None or baseline is None:
        return []
    own, other = values(arm, one.measure), values(baseline, one.measure)
    return [
        {"arm": one.arm, "seed": str(seed), "difference": factor * (own[seed] - other[seed])}
        for seed in one.difference.seeds
    ]


def axes(study: Study) -> list[str]:
    """Returns the fields that the study varies; of fields that change together the first."""
    results: dict[tuple[int, ...], str] = {}
    configs = [flat(config_of(arm)) for arm in study.arms]
    for name in swept(study):
        row = [config.get(name, DASH) for config in configs]
        results.setdefault(tuple(row.index(value) for value in row), name)
    return list(results.values())


def against_fields(study: Study) -> list[Figure]:
    """Returns the measure against the varied field; two fields give lines and a heat map."""
    names = axes(study)
    if not 1 <= len(names) <= 2:
        return []
    rows = _points(study, names)
    if len({row["x"] for row in rows}) < 2:
        return []
    results = [_lines(study, names, rows)]
    if len(names) == 2:
        results.append(_heat_map(study, names, rows))
    return results


def chains(study: Study) -> Figure | None:
    """Returns the measure of arms that continue others, each connected to its continuation; None without any."""
    parents = {arm.name: text(config_of(arm).get("init_from")) for arm in study.arms}
    continued = {
        name: parent.removeprefix(CONTINUES)
        for name, parent in parents.items()
        if parent.startswith(CONTINUES) and parent.removeprefix(CONTINUES) in parents
    }
    involved = {*continued, *continued.values()}
    rows = [row for row in _points(study, []) if row["arm"] in involved]
    places = {row["arm"]: row for row in rows}
    links = [(parent, name) for name, parent in continued.items() if parent in places and name in places]
    if not links:
        return None
    for row in rows:
        row["stage"] = _depth(row["arm"], continued)
    names = [arm.name for arm in study.arms]
    ends = domain((row["mean"] for row in rows), both_ends(rows))
    fit(rows, ends)
    what, last = _label(study), max(row["stage"] for row in rows)
    axis = alt.Axis(values=list(range(last + 1)), format="d")
    x = alt.X("stage:Q", title="how many arms it continues", scale=spanning((-0.2, last + 0.2)), axis=axis)
    y, bottom = (alt.Y(name, title=what, scale=spanning(ends)) for name in ("mean:Q", "bottom:Q"))
    tips = tip(("arm:N", "arm", ""), ("parent:N", "continues", ""), ("mean:Q", what, ".4f"))
    tips += tip(("low:Q", "95% from", ".4f"), ("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    for row in rows:
        row["parent"] = continued.get(row["arm"], "")
    joined = [
        {"arm": name, "link": f"{parent} > {name}", "stage": places[end]["stage"], "mean": places[end]["mean"]}
        for parent, name in links
        for end in (parent, name)
    ]
    line = on("links").mark_line(strokeWidth=1.2, strokeOpacity=0.6).encode(x, y, colour(names), detail="link:N")
    bar = on("rows").mark_rule(strokeWidth=1.2).encode(x, bottom, colour(names), y2="top:Q")
    dots = (
        on("rows").mark_point(filled=True, size=60, opacity=1).encode(x, y, colour(names), shape(names), tooltip=tips)
    )
    spec = finish(sized(alt.layer(line, bar, dots)), {"rows": rows, "links": joined})
    title = f"{'Loss' if _measure(study) == 'loss' else 'Retrieval'} along chains"
    caption = "Lines connect an arm with the arm that continues its runs. Points: mean over seeds; bars: 95% intervals."
    return Figure("chains", title, caption, spec)


def _depth(name: str, continued: dict[str, str]) -> int:
    """Returns the number of arms before an arm in its chain; stops at a cycle, which no sweep produces."""
    seen = [name]
    while (parent := continued.get(seen[-1])) is not None and parent not in seen:
        seen.append(parent)
    return len(seen) - 1


def _points(study: Study, names: list[str]) -> list[dict[str, Any]]:
    """Returns one row per arm with the measure: its field values, mean, interval and seeds."""
    measure = _measure(study)
    rows: list[dict[str, Any]] = []
    for arm in study.arms:
        one = _estimate(arm, measure)
        if not math.isfinite(one.mean):
            continue
        config = flat(config_of(arm))
        row: dict[str, Any] = {"arm": arm.name, "mean": one.mean, "low": one.low, "high": one.high}
        row |= {"x": config.get(names[0], DASH) if names else "", "seeds": one.count}
        rows.append(row | {"series": config.get(names[1], DASH) if len(names) > 1 else ""})
    return rows


def _estimate(arm: Arm, measure: str) -> Estimate:
    if measure == "loss":
        return loss(arm)
    return pooled(point for point in retrieval_points(arm) if point.key == (1.0, TRAINED))


def _label(study: Study) -> str:
    return f"validation loss, {loss_unit(study)}" if _measure(study) == "loss" else "retrieval at the training length"


def _ordered(results: list[str]) -> list[str]:
    """Returns values sorted numerically if all are numbers, else in the study's order."""
    once = list(dict.fromkeys(results))
    numeric = all(math.isfinite(number(value)) for value in once)
    return sorted(once, key=number) if numeric else once


def _short(name: str) -> str:
    return name.removeprefix("model.")


def _channel(name: str, rows: list[dict[str, Any]]) -> Callable[[], alt.X]:
    """Returns a factory of a field's axis: numbers, logarithmic if their range is large, or categories."""
    order = _ordered([row["x"] for row in rows])
    numbers = [number(value) for value in order]
    if not all(math.isfinite(value) for value in numbers):
        axis = alt.Axis(labelAngle=-30, labelLimit=110)
        return lambda: alt.X("x:N", sort=order, title=_short(name), axis=axis, scale=alt.Scale(padding=0.4))
    for row in rows:
        row["value"] = number(row["x"])
    low, high = min(numbers), max(numbers)
    axis = alt.Axis(values=numbers, format="~g", labelOverlap=True)
    if low > 0 and high / low >= LOG_FROM:
        scale = alt.Scale(type="log", nice=False, domain=[low / 1.15, high * 1.15])
    else:
        margin = 0.06 * (high - low)
        scale = spanning((low - margin, high + margin))
    return lambda: alt.X("value:Q", title=_short(name), scale=scale, axis=axis)


def _lines(study: Study, names: list[str], rows: list[dict[str, Any]]) -> Figure:
    series = _ordered([row["series"] for row in rows])
    x, what = _channel(names[0], rows), _label(study)
    ends = domain((row["mean"] for row in rows), both_ends(rows))
    fit(rows, ends)
    y, bottom = (alt.Y(name, title=what, scale=spanning(ends)) for name in ("mean:Q", "bottom:Q"))
    tint = colour(series, _short(names[1]) if len(names) > 1 else None, "series")
    marks = shape(series, "series")
    if len(names) > 1:
        marks = marks.copy()
        marks["title"] = _short(names[1])
    else:
        tint, marks = (alt.value(value) for value in (theme.LIGHT[0], "circle"))  # type: ignore[assignment]
    tint_of = {"color": tint}
    tips = tip(("arm:N", "arm", ""), ("x:N", _short(names[0]), ""), ("mean:Q", what, ".4f"))
    tips += tip(("low:Q", "95% from", ".4f"), ("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    line = on("rows").mark_line(strokeWidth=1.6, strokeOpacity=0.7).encode(x(), y, detail="series:N", **tint_of)
    bar = on("rows").mark_rule(strokeWidth=1.2).encode(x(), bottom, y2="top:Q", **tint_of)
    dot = on("rows").mark_point(filled=True, size=60, opacity=1)
    dots = dot.encode(x(), y, tooltip=tips, shape=marks, **tint_of)
    caption = "One point per arm: mean over seeds; bars: 95% intervals over seeds, clipped to the frame."
    spec = finish(sized(alt.layer(line, bar, dots)), {"rows": rows})
    title = f"{'Loss' if _measure(study) == 'loss' else 'Retrieval'} against {_short(names[0])}"
    title += f", lines by {_short(names[1])}" if len(names) > 1 else ""
    return Figure("against-field", title, caption, spec, False)


def _heat_map(study: Study, names: list[str], rows: list[dict[str, Any]]) -> Figure:
    measure = _measure(study)
    cells = []
    for row in rows:
        half = (row["high"] - row["low"]) / 2
        factor, places = (1.0, 3) if measure == "loss" else (100.0, 1)
        mean = f"{factor * row['mean']:.{places}f}"
        noise = f"\N{PLUS-MINUS SIGN}{factor * half:.{places}f} " if math.isfinite(half) else ""
        cells.append({**row, "shown": mean, "below": f"{noise}n={row['seeds']}"})
    across, down = _ordered([row["x"] for row in rows]), _ordered([row["series"] for row in rows])
    x = alt.X("x:N", sort=across, title=_short(names[0]), axis=alt.Axis(labelAngle=0, labelLimit=90))
    y = alt.Y("series:N", sort=down, title=_short(names[1]), axis=alt.Axis(labelLimit=LABEL))
    tints = ["#8fbbe0", "#f7fafd"] if measure == "loss" else ["#f7fafd", "#8fbbe0"]  # darker is better
    tint = alt.Color("mean:Q", scale=alt.Scale(range=tints, zero=False), legend=None)
    tips = tip(("arm:N", "arm", ""), ("mean:Q", _label(study), ".4f"), ("low:Q", "95% from", ".4f"))
    tips += tip(("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    box = on("cells").mark_rect(stroke="white").encode(x, y, tint, tooltip=tips)
    above = on("cells").mark_text(dy=-6, color="#1b1f24", fontSize=11).encode(x, y, text="shown:N")
    below = on("cells").mark_text(dy=8, color="#1b1f24", fontSize=9).encode(x, y, text="below:N")
    caption = f"{_label(study).capitalize()}: mean over seeds, half of its 95% interval, and seeds; darker is better."
    chart = alt.layer(box, above, below).properties(width=theme.WIDTH, height=38 * len(down) + 10)
    title = f"{'Loss' if measure == 'loss' else 'Retrieval'} by {_short(names[0])} and {_short(names[1])}"
    return Figure("against-fields", title, caption, finish(chart, {"cells": cells}), False, wide=len(across) > 6)
