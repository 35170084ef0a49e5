"""File formats of corpora, recognized by a file's first bytes (by its name only if a format has no magic bytes)."""

import os
from pathlib import Path

from configs.errors import UserError
from data.formats import columns, compressed, llmc, npy, u16
from data.formats.format import HEAD, Columns, Compression, Layout, TokenFormat

__all__ = [
    "COLUMNS",
    "COMPRESSIONS",
    "TOKENS",
    "Columns",
    "Layout",
    "TokenFormat",
    "head",
    "of_columns",
    "of_compression",
    "of_tokens",
]

TOKENS: dict[str, TokenFormat] = {"llm.c": llmc.FORMAT, "npy": npy.FORMAT, "u16": u16.FORMAT}
COMPRESSIONS: dict[str, Compression] = {"gzip": compressed.GZIP, "zstd": compressed.ZSTANDARD}
COLUMNS: dict[str, Columns] = {
    "parquet": columns.PARQUET,
    "arrow": columns.ARROW,
    "arrow_stream": columns.ARROW_STREAM,
}


def head(path: str | os.PathLike[str]) -> bytes:
    """Returns the first HEAD bytes of a file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def of_tokens(path: str | os.PathLike[str], start: bytes) -> TokenFormat | None:
    """Returns the token format of a file from its name and first bytes, or None."""
    name = os.path.basename(path).lower()
    return next((one for one in TOKENS.values() if one.recognises(name, start)), None)


def of_compression(start: bytes) -> Compression | None:
    """Returns the compression of a file that begins with `start`, or None."""
    return next((one for one in COMPRESSIONS.values() if start.startswith(one.magic)), None)


def of_columns(start: bytes) -> Columns | None:
    """Returns the column format of a file that begins with `start`, or None."""
    return next((one for one in COLUMNS.values() if start.startswith(one.magic)), None)
