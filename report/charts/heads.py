"""Statistics of heads, from eval/heads.json: the heat map of layers and heads."""

import math
from typing import Any

import altair as alt

from report.charts.figures import Figure, finish, on, tip
from report.charts.figures import panels as in_panels
from report.charts.grid import PANELS, balanced
from report.reading.directories import Arm, Run, Study, number, objects, text


def entropy_map(study: Study) -> Figure | None:
    """Returns the entropy of every head by layer, one panel per arm, of its first finished seed with this evaluation.

    Colours always span 0 .. 1. Heads of different seeds do not correspond, so there is no mean over seeds.
    """
    rows, panels, several = _cells(study)
    if not rows:
        return None
    heads = sorted({row["head"] for row in rows})
    layers = sorted({row["layer"] for row in rows})
    plain = alt.Axis(labelAngle=0, domain=False, ticks=False, labelOverlap=True)
    x = alt.X("head:O", title="head", axis=plain)
    y = alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(domain=False, ticks=False, labelOverlap=True))
    legend = alt.Legend(title="entropy", format="%", values=[0, 0.25, 0.5, 0.75, 1], gradientLength=160)
    tint = alt.Color("value:Q", scale=alt.Scale(domain=[0, 1], scheme="viridis", clamp=True), legend=legend)
    tips = tip(("arm:N", "arm", ""), ("layer:Q", "layer", "d"), ("head:Q", "head", "d"))
    tips += tip(("value:Q", "entropy, of the maximum", ".1%"), ("low:Q", "95% from", ".1%"), ("high:Q", "to", ".1%"))
    tips += tip(("nats:Q", "entropy, nats", ".3f"), ("distance:Q", "mean distance, tokens", ".1f"))
    tips += tip(("first:Q", "on the first token", ".1%"), ("previous:Q", "on the previous token", ".1%"))
    tips += tip(("importance:Q", "added loss without it, nats", ".4f"), ("why:N", "dead", ""))
    base = on("heads")
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(x, y, tint, tooltip=tips)
    crossed = base.transform_filter("datum.why != ''").mark_text(text="\N{MULTIPLICATION SIGN}", fontSize=13)
    crossed = crossed.encode(x, y, color=alt.condition("datum.value > 0.6", alt.value("#10151b"), alt.value("#ffffff")))
    width = max(12, min(30, 640 // len(heads))) * len(heads)
    height = max(10, min(26, 400 // len(layers))) * len(layers)
    chart = alt.layer(cells, crossed, data=alt.NamedData("heads")).properties(width=width, height=height)
    columns = balanced(len(panels), max(1, 760 // (width + 60)))
    spec = finish(in_panels(chart, "panel", panels, columns), {"heads": rows})
    caption = "Entropy of each head's attention, as a share of the maximum over its visible keys: dark heads attend to "
    caption += "few tokens, bright ones to all equally. Colours always span 0 to 100%."
    if any(row["why"] for row in rows):
        caption += " A cross: a dead head, which writes nothing or attends uniformly."
    caption += " One seed per arm: heads of different seeds do not correspond." if several else ""
    caption += f" Only the first {PANELS} arms are shown." if len(panels) == PANELS else ""
    title = "Attention entropy by layer and head"
    return Figure("attention-entropy", title, caption, spec, False, width + 60, len(panels) > 1, len(panels))


def _cells(study: Study) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Returns one row per head, the panels in order, and whether an arm was evaluated with several seeds."""
    rows: list[dict[str, Any]] = []
    panels: list[str] = []
    several = False
    for arm in study.arms[:PANELS]:
        looked = [(run, result) for run in arm.done if (result := _rows(arm, run))]
        if looked:
            panels.append(arm.name)
            rows += looked[0][1]
            several |= len(looked) > 1
    return rows, panels, several


def _rows(arm: Arm, run: Run) -> list[dict[str, Any]]:
    results = []
    for one in objects(run.evals.get("heads"), "heads"):
        layer, head, value = (number(one.get(key)) for key in ("layer", "head", "entropy_share"))
        if not (math.isfinite(layer) and math.isfinite(head) and math.isfinite(value)):
            continue
        ends = one.get("entropy_share_interval")
        low, high = (number(end) for end in ends) if isinstance(ends, list) and len(ends) == 2 else (math.nan, math.nan)
        row = {"arm": arm.name, "panel": arm.name, "layer": int(layer), "head": int(head), "value": value}
        row |= {"low": low, "high": high, "nats": number(one.get("entropy")), "why": text(one.get("dead"))}
        row |= {key: number(one.get(key)) for key in ("distance", "first", "previous", "importance")}
        results.append(row)
    return results
