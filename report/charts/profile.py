"""Time profile, from eval/profile.json: a stacked bar per arm for each of train, prefill and decode."""

import math
import statistics
from typing import Any

import altair as alt

from report.charts import theme
from report.charts.figures import Figure, finish, on, tip
from report.charts.figures import panels as in_panels
from report.reading.directories import Arm, Study, dig, mapping, number, text

# Parts of one group have shades of one colour: group -> [(part, shade)].
GROUPS: dict[str, list[tuple[str, float]]] = {
    "projection": [("qkv_projection", 1.0), ("output_projection", 0.55)],
    "attention": [("attention_scores", 1.0), ("value_mixing", 0.65), ("positions", 0.4), ("attention_other", 0.25)],
    "MLP": [("mlp", 1.0)],
    "embedding, logits, loss": [("embedding_logits", 1.0)],
    "KV read and write": [("kv_read", 1.0), ("kv_write", 0.55)],
    "norms": [("norm", 1.0)],
    "the rest": [("rest", 1.0), ("unnamed", 0.4)],
    "optimizer": [("optimizer", 1.0)],
}
PROGRAMS = ("train", "prefill", "decode")
ARMS = 40  # bars per panel
WIDE = 0.07  # minimum share for a label on a piece


def where_time_goes(study: Study) -> Figure | None:
    """Returns the shares of time by part, one panel per program; means over the profiled seeds."""
    rows, bound = _rows(study)
    if not rows:
        return None
    names = [arm.name for arm in study.arms if any(row["arm"] == arm.name for row in rows)]
    programs = [name for name in PROGRAMS if any(row["program"] == name for row in rows)]
    axis = alt.Axis(format="%", grid=False, tickCount=5)
    x = alt.X("start:Q", title="share of the time", scale=alt.Scale(domain=[0, 1], nice=False), axis=axis)
    y = alt.Y("arm:N", title=None, sort=names, axis=alt.Axis(grid=False, labelLimit=140))
    tint = alt.Color("group:N", scale=alt.Scale(domain=list(GROUPS)), title=None)
    tips = tip(("arm:N", "arm", ""), ("label:N", "part", ""), ("share:Q", "share", ".1%"))
    tips += tip(("forward:Q", "forward", ".1%"), ("backward:Q", "backward", ".1%"), ("seconds:Q", "s a call", ".3~g"))
    base = on("profile")
    bars = base.mark_bar(stroke="white", strokeWidth=0.6).encode(
        x, y, tint, alt.Opacity("tone:Q", scale=None, legend=None), x2="end:Q", tooltip=tips
    )
    deep = "indexof(['projection', 'the rest', 'optimizer'], datum.group) >= 0 && datum.tone == 1"
    ink = alt.condition(deep, alt.value("#ffffff"), alt.value("#10151b"))
    figures = (
        base.transform_filter(f"datum.share >= {WIDE}")
        .mark_text(fontSize=10)
        .encode(alt.X("middle:Q", title="share of the time"), y, text=alt.Text("share:Q", format=".0%"), color=ink)
    )
    height = max(60, 20 * len(names))
    chart = alt.layer(bars, figures, data=alt.NamedData("profile")).properties(width=theme.WIDTH, height=height)
    spec = finish(in_panels(chart, "program", programs, 2), {"profile": rows})
    caption = (
        "Share of the instructions' time, by the part of the model they belong to; one colour per group. Projection: "
    )
    caption += (
        "QKV, lighter the output's. Attention: scores and softmax, lighter value mixing, rotation by position, what "
    )
    caption += f"is not divided. KV: reading, lighter writing. {' '.join(bound)}"
    several = any(len(_profiles(arm)) > 1 for arm in study.arms)
    caption += " Means over seeds." if several else ""
    caption += f" Only the first {ARMS} arms are shown." if len(study.arms) > ARMS else ""
    return Figure("profile", "Where the time goes", caption, spec, False, theme.WIDTH + 150, True, len(programs))


def _profiles(arm: Arm) -> list[dict[str, Any]]:
    return [result for run in arm.done if (result := mapping(dig(run.evals.get("profile"), "programs")))]


def _rows(study: Study) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns one row per piece, and one sentence per program on what dominates its arms."""
    rows: list[dict[str, Any]] = []
    largest: dict[str, dict[str, list[str]]] = {}
    for arm in study.arms[:ARMS]:
        for name in PROGRAMS:
            given = [result for one in _profiles(arm) if (result := mapping(one.get(name)))]
            pieces = _pieces(given)
            if not pieces:
                continue
            groups = {group: sum(one["share"] for one in pieces if one["group"] == group) for group in GROUPS}
            first = max(groups, key=lambda group: groups[group])
            largest.setdefault(name, {}).setdefault(first, []).append(f"{arm.name} {groups[first]:.0%}")
            rows += [{"arm": arm.name, "program": name, **one} for one in pieces]
    bound = [
        f"Most of {name}: {'; '.join(f'{group} ({_few(arms)})' for group, arms in result.items())}."
        for name, result in largest.items()
    ]
    return rows, bound


def _few(arms: list[str]) -> str:
    return ", ".join(arms) if len(arms) <= 4 else f"{len(arms)} arms"


def _pieces(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the pieces of one bar in order, with their ends."""
    results: list[dict[str, Any]] = []
    place = 0.0
    for group, parts in GROUPS.items():
        for part, tone in parts:
            share = _mean([number(dig(one, "shares", part)) for one in given])
            if not share > 0:
                continue
            row = {"group": group, "label": part.replace("_", " "), "tone": tone, "share": share}
            row |= {"start": place, "end": place + share, "middle": place + share / 2}
            row |= {way: _mean([_of(one, part, way, "share") for one in given]) for way in ("forward", "backward")}
            row["seconds"] = _mean([_of(one, part, None, "seconds") for one in given])
            results.append(row)
            place += share
    return results


def _of(program: dict[str, Any], part: str, way: str | None, key: str) -> float:
    entries = program.get("by_direction")
    results = [
        number(one.get(key))
        for one in (entries if isinstance(entries, list) else [])
        if isinstance(one, dict) and text(one.get("part")) == part and way in (None, text(one.get("direction")))
    ]
    return sum(results) if results else math.nan


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan
