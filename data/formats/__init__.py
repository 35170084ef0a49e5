"""File formats of corpora, recognised by a file's first bytes (by its name only where a format has no magic bytes)."""

import os
from pathlib import Path

from configs.errors import UserError
from data.formats import llmc, npy, u16
from data.formats.format import HEAD, Layout, TokenFormat

__all__ = ["TOKENS", "Layout", "TokenFormat", "head", "of_tokens"]

TOKENS: dict[str, TokenFormat] = {"llm.c": llmc.FORMAT, "npy": npy.FORMAT, "u16": u16.FORMAT}


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
    """Returns the format of a file of tokens from its name and its first bytes, or None where it is none."""
    name = os.path.basename(path).lower()
    return next((one for one in TOKENS.values() if one.recognises(name, start)), None)
