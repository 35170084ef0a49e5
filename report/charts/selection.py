"""The chart of a selection: the loss against the hyperparameter's value, for every arm."""

import math
from typing import Any

import altair as alt

from report.charts.figures import Figure, colour, dashes, domain, finish, on, shape, sized, spanning, tip
from report.page.formats import listed
from report.reading.directories import Study
from report.reading.measures import loss_unit
from report.reading.selecting import Trial, chosen, trials


def loss_by_value(study: Study) -> Figure | None:
    """Returns the mean loss over selection seeds against the tried value, a line per arm; None without selection."""
    result = trials(study)
    shown = [one for one in result if math.isfinite(one.mean)]
    if study.selection is None or not shown:
        return None
    field = study.selection.field
    means = [_row(study, one) for one in shown]
    seeds: list[dict[str, Any]] = [
        {"arm": one.arm, "value": one.value, "loss": loss} for one in shown for loss in one.losses.values()
    ]
    names = [arm.name for arm in study.arms]
    values = [one.value for one in result]
    low, high = min(values), max(values)
    if low > 0 and high / low > 3:
        scale = alt.Scale(type="log", nice=False, domain=[low / 1.3, high * 1.3])
    else:
        scale = spanning(domain(values))
    x = alt.X("value:Q", title=field.rsplit(".", 1)[-1].replace("_", " "), scale=scale, axis=_axis(values))
    ends = domain([row["loss"] for row in means], [row["loss"] for row in seeds])
    y = alt.Y("loss:Q", title=f"validation loss, {loss_unit(study)}", scale=spanning(ends))
    tips = tip(("arm:N", "arm", ""), ("value:Q", field, "~g"), ("loss:Q", "mean loss", ".4f"), ("told:N", "", ""))
    line = on("means").mark_line(strokeWidth=1.8).encode(x, y, colour(names), *dashes(names))
    each = on("seeds").mark_tick(orient="horizontal", thickness=1.5, size=9, opacity=0.6).encode(x, y, colour(names))
    dots = on("means").mark_point(filled=True, size=34, opacity=1)
    dots = dots.encode(x, y, colour(names), shape(names), tooltip=tips)
    ring = on("chosen").mark_point(filled=False, size=190, strokeWidth=1.8, opacity=1, shape="circle")
    ring = ring.encode(x, y, colour(names))
    best = [row for row in means if row["told"]]
    spec = finish(sized(alt.layer(line, each, dots, ring)), {"means": means, "seeds": seeds, "chosen": best})
    return Figure(
        "selection", f"Loss against {field.rsplit('.', 1)[-1].replace('_', ' ')}", _caption(study, result), spec
    )


def _row(study: Study, one: Trial) -> dict[str, Any]:
    best = math.isclose(one.value, chosen(study, one.arm))
    return {"arm": one.arm, "value": one.value, "loss": one.mean, "told": "chosen" if best else ""}


def _axis(values: list[float]) -> alt.Axis:
    return alt.Axis(values=sorted(set(values)), format="~g", labelOverlap=True)


def _caption(study: Study, results: list[Trial]) -> str:
    assert study.selection is not None
    seeds = listed([str(seed) for seed in study.selection.seeds])
    words = f"Selection seeds {seeds}, which are used nowhere else: their mean (line) and each seed (ticks); a ring: "
    words += "the value chosen."
    lost = [f"{one.arm} at {one.value:g}" for one in results if one.diverged]
    return f"{words} Diverged, not shown: {listed(lost)}." if lost else words
