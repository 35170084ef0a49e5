"""The charts of a ladder: loss against compute for every arm, and each arm's compute gain at each rung."""

import math
from typing import Any

import altair as alt

from report.charts.figures import Figure, colour, dashes, dodge, domain, finish, on, shape, si, sized, spanning, tip
from report.claims.ladder import Results, rung_label
from report.reading.directories import Study
from report.reading.measures import loss_unit


def figures(study: Study, result: Results | None) -> list[Figure]:
    """Returns the loss against FLOPs and the gains by rung; empty without ladder results."""
    if result is None or result.refused or not result.curves:
        return []
    return [_losses(study, result), *_gains(study, result)]


def _compute(values: list[float]) -> alt.X:
    scale = alt.Scale(type="log", nice=False, domain=[min(values) / 1.2, max(values) * 1.2])
    return alt.X("flops:Q", title="training compute, FLOPs", scale=scale, axis=si())


def _losses(study: Study, result: Results) -> Figure:
    means: list[dict[str, Any]] = []
    seeds: list[dict[str, Any]] = []
    for name, (values, curve) in result.curves.items():
        for place, value in enumerate(values):
            own = {"arm": name, "flops": math.exp(curve.x[place]), "rung": rung_label(result.by, value)}
            means.append({**own, "loss": float(curve.losses[:, place].mean())})
            seeds += [{**own, "loss": float(loss)} for loss in curve.losses[:, place]]
    names = [arm.name for arm in study.arms]
    x = _compute([row["flops"] for row in means])
    y = alt.Y(
        "loss:Q",
        title=f"validation loss, {loss_unit(study)}",
        scale=spanning(domain([row["loss"] for row in means], [row["loss"] for row in seeds])),
    )
    tips = tip(
        ("arm:N", "arm", ""), ("rung:N", "rung", ""), ("flops:Q", "FLOPs", ".3s"), ("loss:Q", "mean loss", ".4f")
    )
    line = on("means").mark_line(strokeWidth=1.8).encode(x, y, colour(names), *dashes(names))
    each = on("seeds").mark_tick(orient="horizontal", thickness=1.5, size=9, opacity=0.6).encode(x, y, colour(names))
    dots = on("means").mark_point(filled=True, size=34, opacity=1)
    dots = dots.encode(x, y, colour(names), shape(names), tooltip=tips)
    caption = "Mean over seeds (line) and each seed (ticks) at each rung of the ladder, against FLOPs trained."
    return Figure(
        "ladder",
        "Loss against compute",
        caption,
        finish(sized(alt.layer(line, each, dots)), {"means": means, "seeds": seeds}),
    )


def _gains(study: Study, result: Results) -> list[Figure]:
    others = [name for name in result.curves if name != result.baseline]
    rows: list[dict[str, Any]] = []
    for place, name in enumerate(others):
        for level in result.arms[name].levels:
            gain = level.gain
            if not gain.refused:
                ends = [end if 0 < end < math.inf else math.nan for end in (gain.low, gain.high)]
                own = {"arm": name, "rung": rung_label(result.by, level.value)}
                at = gain.flops * dodge(place, len(others))
                rows.append({**own, "flops": at, "gain": gain.gain, "low": ends[0], "high": ends[1]})
    if not rows:
        return []
    names = [arm.name for arm in study.arms]
    x = _compute([row["flops"] for row in rows])
    ends = [row[key] for row in rows for key in ("gain", "low", "high") if math.isfinite(row[key])] + [1.0]
    scale = alt.Scale(type="log", nice=False, domain=[min(ends) / 1.1, max(ends) * 1.1])
    y = alt.Y("gain:Q", title=f"gain: compute of {result.baseline} over the arm's", scale=scale)
    low = alt.Y("low:Q", scale=scale)
    bar = on("gains").mark_rule(strokeWidth=1.2, strokeOpacity=0.7).encode(x, low, colour(names), y2="high:Q")
    line = on("gains").mark_line(strokeWidth=1.8).encode(x, y, colour(names), *dashes(names))
    tips = tip(
        ("arm:N", "arm", ""), ("rung:N", "rung", ""), ("gain:Q", "gain", ".3f"), ("low:Q", "from", ".3f"),
        ("high:Q", "to", ".3f"),
    )  # fmt: skip
    dots = on("gains").mark_point(filled=True, size=34, opacity=1)
    dots = dots.encode(x, y, colour(names), shape(names), tooltip=tips)
    one = (
        alt.Chart(alt.NamedData("one"))
        .mark_rule(strokeDash=[4, 3], color="#868e96")
        .encode(alt.Y("gain:Q", scale=scale))
    )
    left = [
        f"{name} at {rung_label(result.by, level.value)}"
        for name in others
        for level in result.arms[name].levels
        if level.gain.refused
    ]
    caption = (
        f"C'/C at which {result.baseline} reaches the arm's loss, with its 95% interval over seeds; above 1 the arm "
        "saves compute." + (f" Not shown, outside the baseline's losses: {', '.join(left)}." if left else "")
    )
    spec = finish(sized(alt.layer(one, bar, line, dots)), {"gains": rows, "one": [{"gain": 1.0}]})
    return [Figure("gain", "Gain in compute", caption, spec)]
