"""What a file format declares. A format is one file here with one object, and a line in the registry."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

HEAD = 1024  # bytes at a file's beginning by which its format is recognised


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a file lie: `count` numbers of `dtype` (as NumPy spells it) from byte `offset` on."""

    dtype: str
    offset: int
    count: int


@dataclass(frozen=True)
class TokenFormat:
    """A file of token ids.

    Attributes:
        title: for messages and the fingerprint.
        recognises: from the file's name in lower case and its first HEAD bytes.
        layout: from its path, size in bytes and first HEAD bytes. It raises UserError where the file is damaged.
    """

    title: str
    recognises: Callable[[str, bytes], bool]
    layout: Callable[[Path, int, bytes], Layout]


@dataclass(frozen=True)
class Compression:
    """A compressed file of text. `open` gives the bytes that were compressed, a stream."""

    title: str
    magic: bytes
    open: Callable[[Path], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class Columns:
    """A file of columns. `open` gives its Arrow schema and a function from a column's name to its batches of rows."""

    title: str
    magic: bytes
    open: Callable[[Path], AbstractContextManager[tuple[Any, Any]]]
