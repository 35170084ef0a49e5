"""What a file format declares. A format is one file in this folder with one object, and a line in the registry."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

HEAD = 1024  # bytes at the beginning of a file by which its format is recognized


@dataclass(frozen=True)
class Layout:
    """Location of a file's tokens: `count` numbers of `dtype` (NumPy's notation) from byte `offset` on."""

    dtype: str
    offset: int
    count: int


@dataclass(frozen=True)
class TokenFormat:
    """A file of token ids.

    Attributes:
        title: for messages and the fingerprint.
        recognises: from the file's lower-case name and its first HEAD bytes.
        layout: from its path, size in bytes and first HEAD bytes; raises UserError if the file is damaged.
    """

    title: str
    recognises: Callable[[str, bytes], bool]
    layout: Callable[[Path, int, bytes], Layout]


@dataclass(frozen=True)
class Compression:
    """A compressed text file. `open` returns a stream of the decompressed bytes."""

    title: str
    magic: bytes
    open: Callable[[Path], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class Columns:
    """A file of columns. `open` returns its Arrow schema and a function from a column's name to its batches of rows."""

    title: str
    magic: bytes
    open: Callable[[Path], AbstractContextManager[tuple[Any, Any]]]
