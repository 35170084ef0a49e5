"""Formatting of numbers and text, and escaping for Markdown and LaTeX."""

import math
import re
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # beginnings of text that a spreadsheet executes
MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
DASH = "\N{EM DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
DELTA = "\N{GREEK CAPITAL LETTER DELTA}"


def decimals(half: float, least: int = 3, most: int = 6) -> int:
    """Returns how many decimals show an interval of this half-width with two significant digits."""
    if not math.isfinite(half) or half <= 0:
        return least
    return min(most, max(least, 1 - math.floor(math.log10(half))))


def fixed(value: float, places: int = 3) -> str:
    """Returns a number with a true minus sign; a dash if it is not finite."""
    if not math.isfinite(value):
        return DASH
    shown = f"{abs(value):.{places}f}"
    return f"{MINUS}{shown}" if value < 0 and float(shown) != 0 else shown


def interval(low: float, high: float, places: int = 3) -> str:
    """Returns `[low, high]`; empty without an interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{fixed(low, places)}, {fixed(high, places)}]"


def count(value: float) -> str:
    """Returns three significant digits with k, M, G, T or P (thousands)."""
    return _scaled(value, 1000.0, ["", "k", "M", "G", "T", "P", "E"])


def memory(value: float) -> str:
    """Returns bytes with KiB, MiB or GiB (powers of 1024)."""
    return _scaled(value, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])


def _scaled(value: float, base: float, units: list[str]) -> str:
    if not math.isfinite(value):
        return DASH
    size, index = abs(value), 0
    while size >= base * 0.9995 and index < len(units) - 1:
        size, index = size / base, index + 1
    places = 0 if index == 0 and size == int(size) else max(0, 2 - int(math.log10(size)) if size >= 1 else 2)
    return f"{MINUS if value < 0 else ''}{size:.{places}f}{units[index]}"


def counted(value: float) -> str:
    """Returns a number in full with thousands separators, for configured amounts."""
    if not math.isfinite(value):
        return DASH
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e12 else f"{value:.4g}"


def percent(share: float, places: int = 1) -> str:
    """Returns a share of 1 as a percentage."""
    return DASH if not math.isfinite(share) else f"{100 * share:.{places}f}%"


def multiple(value: float) -> str:
    """Returns a length as a multiple, such as `8` and the multiplication sign."""
    return f"{value:g}{TIMES}"


def plural(amount: int, noun: str) -> str:
    """Returns `1 seed`, `2 seeds`."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def listed(parts: list[str]) -> str:
    """Returns `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def one_line(text: str) -> str:
    """Returns text without line breaks and control characters."""
    return re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()


def markdown(text: str) -> str:
    """Returns text as one Markdown table cell, with all markup escaped."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#$!])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row a bracket would start an optional argument
    "]": "{]}",
    "\N{EM DASH}": "---",
    "\N{EN DASH}": "--",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{GREATER-THAN OR EQUAL TO}": r"$\ge$",
    "\N{LESS-THAN OR EQUAL TO}": r"$\le$",
    "\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def latex(text: str) -> str:
    """Returns text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(mark, mark) for mark in one_line(text))


def slug(text: str) -> str:
    """Returns text for use in a file name or an HTML id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:60] or "study"


def inert(value: Any) -> Any:
    """Returns a CSV cell that a spreadsheet shows and does not execute: text that it would execute gets a leading '.

    Numbers, also as text, are unchanged. A carriage return, which may end a row without quotes, becomes a newline.
    """
    if not isinstance(value, str):
        return value
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    if not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def shortened(text: str, size: int) -> str:
    """Returns the text in at most `size` letters; of a longer one the beginning and the end, which tell arms apart."""
    if len(text) <= size:
        return text
    head = (size - 1) // 2
    return f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (size - 1 - head) :]}"
