"""Chart style: a palette that colour-blind readers can distinguish, and type that is legible at column width."""

from typing import Any

# Okabe and Ito's colours without black and yellow, which are invisible on a dark or a white page, with grey and plum. A
# test checks that any two are far enough apart (CIELAB distance over 12), also for protanopes, deuteranopes,
# tritanopes.
LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a5a5a", "#661144"]
DARK = ["#3d94d6", "#f0703c", "#2fc79a", "#e59fd2", "#f7d060", "#a5e3ff", "#8f8f8f", "#b3446c"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
PAIRS = 24  # distinct pairs of colour and marker
DASHES: list[list[int]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
WIDTH, HEIGHT = 360, 230  # pixels of 1/96 inch: a column of a two-column paper


def dash(index: int) -> list[int]:
    """Returns the dash pattern of the index-th arm: colours repeat after eight, and dashes distinguish the repeats."""
    return DASHES[index // len(LIGHT) % len(DASHES)]


def marker(index: int) -> str:
    """Returns the shape of the index-th arm: each repeat of the colours starts with another shape."""
    return SHAPES[(index + index // len(LIGHT)) % len(SHAPES)]


def config(dark: bool = False) -> dict[str, Any]:
    """Returns the Vega-Lite config of the light (also the printed) or the dark page."""
    ink, soft, rule = ("#e6e8eb", "#a9b0b8", "#363c44") if dark else ("#1b1f24", "#57606a", "#e3e6ea")
    text = {"labelFont": FONT, "titleFont": FONT, "labelColor": soft, "titleColor": ink}
    return {
        "background": "transparent" if dark else "white",
        "font": FONT,
        "padding": 6,
        "axis": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "gridColor": rule,
            "domainColor": soft,
            "tickColor": soft,
            "tickSize": 4,
            "labelFlush": False,
        },
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
        "legend": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "labelColor": ink,
            "orient": "top",
            "symbolLimit": 0,
            "labelLimit": 180,
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "columns": 4,
            "title": None,
        },
        "header": {**text, "labelFontSize": 12, "labelColor": ink, "labelLimit": 260, "labelPadding": 4},
        "view": {"stroke": None},
        "range": {"category": DARK if dark else LIGHT},
        "line": {"strokeCap": "round", "strokeJoin": "round"},
        "text": {"font": FONT, "fontSize": 11, "fill": ink},
        "rule": {"color": soft},
    }
