"""Charts of training and of cost: loss curves, loss by position, quality against cost."""

import math
from collections.abc import Callable
from typing import Any, Literal

import altair as alt
import pandas as pd

from report.charts.figures import (
    Figure,
    both_ends,
    colour,
    cut,
    dashes,
    domain,
    finish,
    fit,
    on,
    shape,
    si,
    sized,
    spanning,
    tip,
)
from report.claims import comparable
from report.page.formats import count, shortened
from report.reading import curriculum
from report.reading.directories import Arm, Run, Study, number
from report.reading.frames import positions
from report.reading.measures import (
    from_eval,
    from_info,
    loss,
    loss_unit,
    median,
    pooled,
    retrieval_points,
    timed_under_load,
    train_memory,
)
from report.reading.settings import config_of
from report.statistics.intervals import over_seeds

LINES = 12000  # maximum points of a chart of curves over all its lines
THIN = 150  # up to this many runs each seed has its own thin line beside its arm's mean


def curves(study: Study, key: str, title: str, smooth: bool) -> Figure | None:
    """Returns the loss over training tokens: one line per seed, and each arm's mean over its finished seeds.

    Args:
        key: "train_loss" or "val_loss" of metrics.jsonl.
        smooth: average over neighbouring steps (exponential, over a twentieth of the run).
    """
    runs = [(arm, run) for arm in study.arms for run in arm.runs if len(_logged(run, key)) > 1]
    if not runs:
        return None
    most = max(24, min(160, LINES // len(runs)))
    thinly = len(runs) <= THIN
    per_run = {(arm.name, run.seed): _thin(_series(run, key, smooth), most) for arm, run in runs}
    means = {arm.name: _mean(arm, per_run) for arm in study.arms}
    ends = _ends([per_run[arm.name, run.seed] for arm, run in runs if run.status == "done"] or list(per_run.values()))
    data = {
        "seeds": [
            {"arm": arm, "line": f"{arm}/{seed}", "tokens": tokens, "loss": value}
            for (arm, seed), series in (per_run.items() if thinly else ())
            for tokens, value in cut(_pairs(series), ends[1])
        ],
        "means": [
            {"arm": arm.name, "tokens": tokens, "loss": value, "seeds": len(arm.done)}
            for arm in study.arms
            for tokens, value in cut(_pairs(means[arm.name]), ends[1])
        ],
    }
    names = [arm.name for arm in study.arms]
    last = max((series.index.max() for series in per_run.values()), default=1.0)
    x = alt.X("tokens:Q", title="training tokens", axis=si(), scale=spanning((0.0, 1.02 * last)))
    y = alt.Y("loss:Q", title=f"{title}, {loss_unit(study)}", scale=spanning(ends))
    thin = on("seeds").mark_line(strokeWidth=0.8, strokeOpacity=0.4).encode(x, y, colour(names), detail="line:N")
    thick = on("means").mark_line(strokeWidth=2).encode(x, y, colour(names), *dashes(names))
    tips = tip(("arm:N", "arm", ""), ("tokens:Q", "tokens", ",.0f"), ("loss:Q", "loss", ".4f"))
    tips += tip(("seeds:Q", "seeds", ""))
    few = all(len(series) <= 2 for series in per_run.values())  # two points are drawn as points, not as a curve
    hover = (
        on("means")
        .mark_point(filled=True, fillOpacity=float(few), opacity=1, size=80)
        .encode(x, y, colour(names), tooltip=tips)
    )
    caption = "Thick: mean over finished seeds."
    caption += " Thin: each seed." if thinly else f" With more than {THIN} runs, seeds have no lines."
    caption += " Smoothed over a twentieth of the run." if smooth else ""
    caption += " Values above the top are cut." if any(series.max() > ends[1] for series in per_run.values()) else ""
    dots = on("seeds").mark_point(filled=True, size=18, opacity=0.5).encode(x, y, colour(names))
    stages = _stages(study, 1.02 * last)
    if stages:
        data["stages"] = stages
        rule = alt.Chart(alt.NamedData("stages")).mark_rule(strokeDash=[2, 3]).encode(alt.X("tokens:Q"))
        what = tip(("stage:N", "until here", ""), ("tokens:Q", "tokens", ",.0f"))
        caption += f" Dotted: ends of curriculum stages ({_said(stages)})."
    layers = [rule.encode(tooltip=what)] if stages else []
    layers += [dots, hover] if few else [thin, thick, hover]
    spec = finish(sized(alt.layer(*layers)), data)
    lines = _lines(runs, key, per_run, thinly, most)
    return Figure(key.replace("_", "-"), title.capitalize(), caption, spec, lines=lines)


STAGES = 6  # maximum stage ends marked in a chart


def _stages(study: Study, last: float) -> list[dict[str, Any]]:
    """Returns the ends of the arms' curriculum stages: a row per end, with tokens and the stage."""
    ends: dict[float, str] = {}
    for arm in study.arms:
        tokens = 0.0
        for stage in curriculum.stages(config_of(arm)):
            tokens += stage.tokens
            if 0 < tokens < last:
                ends.setdefault(tokens, f"length {stage.length:g}")
    return [{"tokens": end, "stage": ends[end]} for end in sorted(ends)[:STAGES]]


def _said(stages: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['stage']} until {count(one['tokens'])} tokens" for one in stages)


def _lines(
    runs: list[tuple[Arm, Run]], key: str, per_run: dict[tuple[str, int], pd.Series], thinly: bool, most: int
) -> dict[str, Any]:
    """Returns each run's line as drawn and as logged, and the tokens that lines share only once."""
    places: dict[tuple[float, ...], int] = {}
    results = []
    for arm, run in runs:
        drawn = per_run[arm.name, run.seed]
        logged = _thin(_series(run, key, smooth=False), most)
        place = places.setdefault(tuple(drawn.index.to_list()), len(places))
        one = {"arm": arm.name, "seed": str(run.seed), "done": run.status == "done"}
        one |= {"at": place, "drawn": _short(drawn)}
        results.append(one | ({} if one["drawn"] == _short(logged) else {"logged": _short(logged)}))
    return {"thin": thinly, "tokens": [list(one) for one in places], "runs": results}


def _short(series: pd.Series) -> list[float]:
    return [float(f"{value:.5g}") for value in series.to_list()]


def _logged(run: Run, key: str) -> list[tuple[float, float]]:
    pairs = [(number(row.get("tokens")), number(row.get(key))) for row in run.metrics]
    return [(tokens, value) for tokens, value in pairs if math.isfinite(tokens) and math.isfinite(value)]


def _series(run: Run, key: str, smooth: bool) -> pd.Series:
    pairs = dict(_logged(run, key))
    series = pd.Series(list(pairs.values()), index=list(pairs), dtype=float)
    return series.ewm(span=max(1.0, len(series) / 20)).mean() if smooth else series


def _thin(series: pd.Series, most: int) -> pd.Series:
    if len(series) <= most:
        return series
    kept = sorted({round(index * (len(series) - 1) / (most - 1)) for index in range(most)})
    return series.iloc[kept]


def _pairs(series: pd.Series) -> list[tuple[float, float]]:
    return list(zip(series.index.to_list(), series.to_list(), strict=True))


def _mean(arm: Arm, per_run: dict[tuple[str, int], pd.Series]) -> pd.Series:
    """Returns the mean over finished seeds at the tokens that all of them logged."""
    done = [per_run[arm.name, run.seed] for run in arm.done if (arm.name, run.seed) in per_run]
    return pd.concat(done, axis=1, join="inner").mean(axis=1) if done else pd.Series(dtype=float)


def _ends(lines: list[pd.Series]) -> tuple[float, float]:
    """Returns the range of the axis: the losses after the first tenth, which would squeeze all others."""
    return domain(value for line in lines for value in line.iloc[len(line) // 10 :].to_list())


def by_position(study: Study) -> Figure | None:
    """Returns the loss by position in the row at the training length, the mean over seeds with its 95% band."""
    rows: list[dict[str, Any]] = []
    for arm in study.arms:
        bins: dict[float, list[float]] = {}
        for run in arm.done:
            for middle, value in positions(run):
                bins.setdefault(middle, []).append(value)
        for middle, values in sorted(bins.items()):
            one = over_seeds(values)
            rows.append(
                {
                    "arm": arm.name,
                    "position": middle,
                    "loss": one.mean,
                    "low": one.low,
                    "high": one.high,
                    "seeds": one.count,
                }
            )
    if not rows:
        return None
    names = [arm.name for arm in study.arms]
    places = [row["position"] for row in rows]
    scale_x = alt.Scale(type="log", base=2, nice=False, domain=[min(places) / 1.12, max(places) * 1.12])
    x = alt.X("position:Q", title="position in the row, tokens", scale=scale_x)
    ends = domain((row["loss"] for row in rows), both_ends(rows))
    fit(rows, ends)
    scale = spanning(ends)
    what = f"validation loss, {loss_unit(study)}"
    y, bottom = (alt.Y(name, title=what, scale=scale) for name in ("loss:Q", "bottom:Q"))
    band = on("rows").mark_area(fillOpacity=0.13).encode(x, bottom, colour(names), y2="top:Q")
    line = on("rows").mark_line(strokeWidth=1.8).encode(x, y, colour(names), *dashes(names))
    tips = tip(("arm:N", "arm", ""), ("position:Q", "position", ".0f"), ("loss:Q", "loss", ".4f"))
    tips += tip(("low:Q", "95% from", ".4f"), ("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    dots = (
        on("rows").mark_point(filled=True, size=28, opacity=1).encode(x, y, colour(names), shape(names), tooltip=tips)
    )
    caption = "Mean over seeds at the training length, by bins of position; band: 95% t-interval over seeds."
    return Figure(
        "loss-by-position", "Loss by position", caption, finish(sized(alt.layer(band, line, dots)), {"rows": rows})
    )


Cost = tuple[str, str, Callable[[Run], float]]
SPEEDS: list[Cost] = [
    ("train-speed", "training tokens/s", from_eval("throughput", "train", "tokens_per_second")),
    ("decode-speed", "decoded tokens/s", from_eval("throughput", "decode", "tokens_per_second")),
]
SIZES: list[Cost] = [
    ("parameters", "parameters", from_info("parameters", "total")),
    ("kv-bytes", "KV cache, bytes/token", from_info("kv_bytes_per_token")),
]
MEMORY: Cost = ("memory", "train step's peak memory, bytes", train_memory)


def speeds(study: Study) -> list[Figure]:
    """Returns quality against each speed in which the arms differ by more than 1%."""
    return _costs(study, SPEEDS)


def sizes(study: Study) -> list[Figure]:
    """Returns quality against each size of the model in which the arms differ by more than 1%."""
    return _costs(study, SIZES)


def memory(study: Study) -> list[Figure]:
    """Returns quality against memory where the arms differ in it by more than 1%."""
    return _costs(study, [MEMORY])


def _costs(study: Study, costs: list[Cost]) -> list[Figure]:
    result = [_cost(study, *cost) for cost in costs] if len(study.arms) > 1 else []
    return [figure for figure in result if figure is not None]


PLOT = (240.0, 140.0)  # pixels of a plot within its axes, at the smallest size of figures
Box = tuple[float, float, float, float]  # left, top, right, bottom, pixels
NAME = 18  # letters of an arm's name beside its point; of a longer one the beginning and the end
# Where a name may stand: its alignment, and how far right and down of its point it begins, in pixels.
PLACES: dict[str, tuple[Literal["left", "right"], int, int]] = {
    "right above": ("left", 8, -7),
    "left above": ("right", -8, -7),
    "right below": ("left", 8, 9),
    "left below": ("right", -8, 9),
}


def _label_front(
    rows: list[dict[str, Any]], costs: tuple[float, float], ends: tuple[float, float], more: bool, higher: bool
) -> None:
    """Sets each row's `name` and `label`, its place among PLACES: first where it covers no other point.

    The label is empty beside the Pareto front, and where names would meet.

    A cost measured under load (`busy`) is not ranked: its arm is not on the front and excludes none from it.

    Args:
        rows: with `arm`, `cost`, `quality` and optionally `busy`, changed in place.
        costs: the smallest and the largest cost.
        ends: of the axis of quality.
        more: a larger cost is better, such as a speed.
        higher: a higher quality is better.
    """
    across, up = (1 if more else -1), (1 if higher else -1)

    def beaten(one: dict[str, Any]) -> bool:
        own = (across * one["cost"], up * one["quality"])
        others = [(across * other["cost"], up * other["quality"]) for other in rows if not other.get("busy")]
        return any(other[0] >= own[0] and other[1] >= own[1] and other != own for other in others)

    def at(row: dict[str, Any]) -> tuple[float, float]:
        x = 0.1 * PLOT[0] + 0.8 * PLOT[0] * (row["cost"] - costs[0]) / (costs[1] - costs[0])
        return x, PLOT[1] * (1 - (row["quality"] - ends[0]) / (ends[1] - ends[0]))

    taken: list[Box] = []
    dots = [(x - 4, y - 4, x + 4, y + 4) for x, y in map(at, rows)]
    for row in sorted(rows, key=lambda row: up * row["quality"], reverse=True):
        row["label"], row["name"] = "", shortened(row["arm"], NAME)
        if row.get("busy") or beaten(row):
            continue
        boxes = {place: _box(at(row), 6.2 * len(row["name"]), *given) for place, given in PLACES.items()}
        inside = {
            place: box
            for place, box in boxes.items()
            if box[0] >= 0 and box[2] <= PLOT[0] and 0 <= box[1] < box[3] <= PLOT[1]
        }
        free = {place: box for place, box in inside.items() if not any(_overlap(box, other) for other in taken)}
        if free:
            row["label"] = min(free, key=lambda place: sum(_overlap(free[place], dot) for dot in dots))
            taken.append(free[row["label"]])


def _box(point: tuple[float, float], width: float, align: str, right: int, down: int) -> Box:
    left = point[0] + right - (width if align == "right" else 0.0)
    return left, point[1] + down - 8, left + width, point[1] + down + 8


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _cost(study: Study, key: str, label: str, measure: Callable[[Run], float]) -> Figure | None:
    by_loss = any(math.isfinite(loss(arm).mean) for arm in study.arms)
    rows: list[dict[str, Any]] = []
    apart = comparable.apart(study, "loss" if by_loss else "retrieval")
    speed = key.endswith("speed")
    for arm in study.arms:
        if arm.name in apart:
            continue
        quality = loss(arm) if by_loss else pooled(p for p in retrieval_points(arm) if p.key == (1.0, "trained"))
        cost = median(arm, measure)
        if math.isfinite(quality.mean) and math.isfinite(cost):
            row = {"arm": arm.name, "cost": cost, "quality": quality.mean}
            row["busy"] = speed and bool(timed_under_load(arm))
            rows.append(row | {"low": quality.low, "high": quality.high, "seeds": quality.count})
    values = [row["cost"] for row in rows]
    if len(rows) < 2 or max(values) <= 1.01 * min(values):
        return None
    names = [arm.name for arm in study.arms]
    what = f"validation loss, {loss_unit(study)}" if by_loss else "retrieval at the training length"
    x = alt.X("cost:Q", title=label, scale=spanning(domain(values, pad=0.12)), axis=si(4))
    ends = domain((row["quality"] for row in rows), both_ends(rows)) if by_loss else (0.0, 1.0)
    fit(rows, ends)
    scale = spanning(ends)
    y = alt.Y("quality:Q", title=what, scale=scale)
    bar = (
        on("rows")
        .mark_rule(strokeWidth=1.2, strokeOpacity=0.7)
        .encode(x, alt.Y("bottom:Q", scale=scale, title=what), colour(names), y2="top:Q")
    )
    tips = tip(("arm:N", "arm", ""), ("cost:Q", label, ",.4~s"), ("quality:Q", what, ".4f"))
    tips += tip(("low:Q", "95% from", ".4f"), ("high:Q", "to", ".4f"), ("seeds:Q", "seeds", ""))
    layers = [bar]
    for filled in (True, False):
        kept = on("rows").transform_filter("!datum.busy" if filled else "datum.busy")
        dot = kept.mark_point(filled=filled, size=70, opacity=1, strokeWidth=1.5)
        layers.append(dot.encode(x, y, colour(names), shape(names), tooltip=tips))
    _label_front(rows, (min(values), max(values)), ends, speed, not by_loss)
    for place in sorted({row["label"] for row in rows} - {""}):
        align, dx, dy = PLACES[place]
        text = on("rows").transform_filter(f"datum.label == '{place}'").mark_text(align=align, dx=dx, dy=dy)
        layers.append(text.encode(x, y, text="name:N"))
    side = "loss: lower is better" if by_loss else "higher is better"
    interval = "95% t-interval over seeds (over tokens if there is one seed)"
    interval = interval if by_loss else "95% interval over seeds and rows"
    title = f"Quality against {label.split(',')[0]}"
    caption = f"{side.capitalize()}. Bars: {interval}; parts outside the frame are cut off."
    caption += " Labelled: the Pareto front, unless names overlap."
    busy = [row["arm"] for row in rows if row["busy"]]
    if busy:
        named = f"{', '.join(busy[:6])}{f' and {len(busy) - 6} more' if len(busy) > 6 else ''}"
        caption += f" Hollow: speeds measured under load, which are not ranked ({named})."
    caption += f" Left out, not comparable: {', '.join(apart)}." if apart else ""
    return Figure(f"quality-{key}", title, caption, finish(sized(alt.layer(*layers)), {"rows": rows}))
