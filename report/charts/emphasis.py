"""Figures with more arms than pairs of colour and marker: some arms in colour, the others grey."""

import math
from typing import Any

from report.charts import theme
from report.charts.figures import Figure, layers_of
from report.reading.directories import Study
from report.reading.measures import loss, pooled, retrieval_points

BEST = 7  # arms in colour beside the baseline if the study names none
GREY = "#9a9a9a"  # legible on the light and on the dark page
REST = {"color": GREY, "shape": "circle", "strokeDash": [1, 0]}


def chosen(study: Study) -> list[str]:
    """Returns the arms drawn in colour, in the study's order.

    All of them if each can have its own colour and marker; else the baseline with the arms that the study highlights,
    or with the BEST ones by lowest loss (by retrieval if there is no loss).
    """
    names = [arm.name for arm in study.arms]
    if len(names) <= theme.PAIRS:
        return names
    wanted = {study.baseline, *(study.highlight or _best(study))}
    return [name for name in names if name in wanted][: theme.PAIRS]


def _best(study: Study) -> list[str]:
    """Returns the arms with the best result, at most BEST."""
    results = {arm.name: loss(arm).mean for arm in study.arms}
    if not any(map(math.isfinite, results.values())):
        results = {arm.name: -pooled(p for p in retrieval_points(arm) if p.multiple == 1).mean for arm in study.arms}
    known = [name for name, value in results.items() if math.isfinite(value) and name != study.baseline]
    return sorted(known, key=lambda name: results[name])[:BEST]


def emphasised(figure: Figure, study: Study) -> Figure:
    """Changes the figure so that all but the chosen arms are grey and not in legends; returns it."""
    names = chosen(study)
    if len(names) == len(study.arms):
        return figure
    changed = False
    for layer in layers_of(figure.spec):
        encoding = layer.get("encoding", {})
        for channel, rest in REST.items():
            if encoding.get(channel, {}).get("field") == "arm":
                encoding[channel] = _apart(channel, encoding[channel], names, rest)
                changed = True
    if changed:
        figure.caption += f" In colour: {len(names)} of {len(study.arms)} arms; the others are grey."
    return figure


def _apart(channel: str, one: dict[str, Any], names: list[str], rest: Any) -> dict[str, Any]:
    """Returns a channel that distinguishes the named arms and has one value for all others."""
    kept = {key: value for key, value in one.items() if key not in ("scale", "legend")}
    ranges: dict[str, list[Any]] = {
        "shape": [theme.marker(index) for index in range(len(names))],
        "strokeDash": [theme.dash(index) for index in range(len(names))],
    }
    scale = {"domain": names} | ({"range": ranges[channel]} if channel in ranges else {})
    legend = {"title": None, "values": names}
    test = f"indexof({_listed(names)}, datum.arm) >= 0"
    return {"condition": kept | {"test": test, "scale": scale, "legend": legend}, "value": rest}


def _listed(names: list[str]) -> str:
    """Returns names as a Vega expression: a list of literals in which no character is code."""
    return "[" + ", ".join(f"'{''.join(map(_escaped, name))}'" for name in names) + "]"


def _escaped(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else "".join(f"\\u{unit:04x}" for unit in _units(letter))


def _units(letter: str) -> list[int]:
    """Returns a letter's UTF-16 code units."""
    raw = letter.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[place : place + 2], "big") for place in range(0, len(raw), 2)]
