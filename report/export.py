"""Plots as files: SVG, PDF and PNG of each figure, from the very specs that the page shows."""

import copy
import struct
import zlib
from typing import Any

import altair as alt
import vl_convert

from report import theme

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
PNG_SCALE = 3.0  # 288 pixels an inch: print quality at column width
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def svg(spec: dict[str, Any]) -> str:
    """Returns the figure as SVG on white; nothing is fetched."""
    themed = copy.copy(spec) | {"config": theme.config()}
    return str(vl_convert.vegalite_to_svg(themed, vl_version=VEGA_LITE, allowed_base_urls=[]))


def pdf(drawn: str) -> bytes:
    """Returns an SVG as PDF, text as text."""
    return bytes(vl_convert.svg_to_pdf(drawn))


def png(drawn: str) -> bytes:
    """Returns an SVG as PNG at print resolution."""
    return packed(bytes(vl_convert.svg_to_png(drawn, scale=PNG_SCALE)))


def packed(raw: bytes) -> bytes:
    """Returns the same PNG with its pixels compressed again: the converter leaves them about twenty times too large."""
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
    """Returns Vega, Vega-Lite and vega-embed as one script that touches no network."""
    return str(vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE))
