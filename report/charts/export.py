"""Plots as files: SVG, PDF and PNG of each figure, as wide as a paper's column (with panels: as its text).

They are drawn from the specs that the page shows. A pixel of the SVG is 1/96 inch, a point of the PDF 1/72.
"""

import hashlib
import importlib.metadata
import math
import re
import struct
import threading
import zlib
from typing import Any

import altair as alt
import vl_convert

from configs.errors import UserError
from configs.folders import cache_dir, private
from report.charts import theme
from report.charts.figures import layers_of
from report.files import write

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
PNG_SCALE = 3.0  # 288 pixels per inch: print quality
COLUMN, TEXT = 312, 648  # pixels: 3.25 and 6.75 inches, the column and the text of a two-column paper
SYMBOL, LETTER = 42, 6.2  # pixels of a legend's symbol with its margins, and of a letter beside it
BESIDE = 72  # pixels of a panel's axis and its distance to the next panel
PIXELS = 3_000_000  # of one PNG
_SIZE = re.compile(r'(<svg\b[^>]*?) width="([\d.]+)" height="([\d.]+)"')
_DRAWING = threading.Lock()  # one JavaScript engine draws for all threads
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def svg(spec: dict[str, Any]) -> str:
    """Returns the figure as SVG on white, COLUMN pixels wide, with panels at most TEXT; nothing is fetched."""
    themed = _sized(spec) | {"config": _with_room(theme.config(), spec)}
    with _DRAWING:
        drawn = str(vl_convert.vegalite_to_svg(themed, vl_version=VEGA_LITE, allowed_base_urls=[]))
    return _narrowed(drawn)


def _with_room(config: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the config with as many legend columns as fit with the longest name."""
    names = [name for layer in layers_of(spec) for name in _named(layer.get("encoding", {}))]
    if not names:
        return config
    room = COLUMN if "facet" not in spec else TEXT // 2
    widest = min(room - SYMBOL, LETTER * max(map(len, names)))
    columns = max(1, min(config["legend"]["columns"], int(room / (SYMBOL + widest))))
    return config | {"legend": config["legend"] | {"columns": columns, "labelLimit": room - SYMBOL}}


def _named(encoding: dict[str, Any]) -> list[str]:
    """Returns the names that a layer's legends list."""
    results: list[Any] = []
    for channel in ("color", "shape", "strokeDash"):
        one = encoding.get(channel, {})
        one = one.get("condition", one)
        if one.get("legend", {}) is not None:
            results += one.get("legend", {}).get("values") or one.get("scale", {}).get("domain") or []
    return [str(name) for name in results]


def _sized(spec: dict[str, Any]) -> dict[str, Any]:
    if "facet" not in spec:
        height = 200 if spec.get("height", theme.HEIGHT) == theme.HEIGHT else spec["height"]
        return spec | {"width": COLUMN, "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    inner = spec["spec"]
    across = min(spec.get("columns") or 1, 4)
    room = TEXT // across - BESIDE
    if inner.get("width", 0) <= room or any(layer["mark"].get("type") == "rect" for layer in inner.get("layer", [])):
        return spec
    return spec | {"spec": inner | {"width": room, "height": round(room * inner["height"] / inner["width"])}}


def _narrowed(drawn: str) -> str:
    """Returns an SVG of at most TEXT width; a wider one is scaled down."""
    width, _ = size(drawn)
    return _resized(drawn, TEXT / width) if width > TEXT else drawn


def size(drawn: str) -> tuple[float, float]:
    """Returns the width and height of an SVG in its pixels."""
    result = _SIZE.match(drawn)
    return (float(result.group(2)), float(result.group(3))) if result else (0.0, 0.0)


def _resized(drawn: str, factor: float) -> str:
    width, height = (f"{factor * one:.6g}" for one in size(drawn))
    return _SIZE.sub(lambda result: f'{result.group(1)} width="{width}" height="{height}"', drawn, count=1)


def pdf(drawn: str) -> bytes:
    """Returns an SVG as PDF of the same size on paper, text as text."""
    return bytes(vl_convert.svg_to_pdf(_resized(drawn, 72 / 96)))


def png(drawn: str) -> bytes:
    """Returns an SVG as PNG at print resolution, or, for very large ones (many panels), at the resolution of PIXELS."""
    width, height = size(drawn)
    scale = min(PNG_SCALE, math.sqrt(PIXELS / max(1.0, width * height)))
    return packed(bytes(vl_convert.svg_to_png(drawn, scale=scale)))


def packed(raw: bytes) -> bytes:
    """Returns the PNG with its pixels recompressed: the converter's output is about twenty times too large."""
    chunks, place = [], len(_SIGNATURE)
    while place < len(raw):
        (size,) = struct.unpack_from(">I", raw, place)
        chunks.append((raw[place + 4 : place + 8], raw[place + 8 : place + 8 + size]))
        place += 12 + size
    pixels = zlib.compress(zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT")), 6)
    before = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    return _SIGNATURE + b"".join(_chunk(*chunk) for chunk in [*before, (b"IDAT", pixels), (b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bundle() -> str:
    """Returns Vega, Vega-Lite and vega-embed as one script without network access.

    Bundling takes longer than most of a report, so the script is cached by the versions it is made of, in a folder that
    only the user can enter; without such a folder it is bundled each time.
    """
    try:
        name = f"vega-{VEGA_LITE}-{importlib.metadata.version('vl-convert-python')}.js"
        path = private(cache_dir() / "scripts", "what reports execute") / name
        digest, _, script = (path.read_bytes() if path.is_file() else b"").partition(b"\n")
        if not script or hashlib.sha256(script).hexdigest().encode() != digest:  # missing or damaged
            script = _bundled().encode("utf-8")
            write(path, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    except (OSError, UserError):
        return _bundled()
    return script.decode("utf-8")


def _bundled() -> str:
    return str(vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE))
