"""gzip and Zstandard files, decompressed while reading."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from configs.errors import UserError
from data.formats.format import Compression

SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")
MOST = 2**31  # decompressed bytes of one document or one line


@contextlib.contextmanager
def _gzip(path: Path) -> Iterator[BinaryIO]:
    with gzip.open(path, "rb") as stream:
        yield cast(BinaryIO, stream)


@contextlib.contextmanager
def _zstandard(path: Path) -> Iterator[BinaryIO]:
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        yield cast(BinaryIO, io.BufferedReader(stream))


def lines(compression: Compression, path: Path) -> Iterator[bytes]:
    """Yields the lines of a compressed file.

    Raises:
        UserError: it is damaged, or a line is longer than MOST bytes.
    """
    with _damage_told(compression, path), compression.open(path) as stream:
        while line := stream.readline(MOST + 1):
            if len(line) > MOST:
                raise UserError(f"{path}: has a line of more than {MOST:,} bytes, decompressed")
            yield line


def content(compression: Compression, path: Path) -> bytes:
    """Returns the decompressed content of a file.

    Raises:
        UserError: it is damaged, or longer than MOST bytes.
    """
    with _damage_told(compression, path), compression.open(path) as stream:
        result = stream.read(MOST + 1)
    if len(result) > MOST:
        raise UserError(f"{path}: has more than {MOST:,} bytes, decompressed; write it as JSON lines")
    return result


@contextlib.contextmanager
def _damage_told(compression: Compression, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, ValueError, pa.ArrowException) as error:
        message = " ".join(str(error).split())[:160]
        raise UserError(f"{path}: is damaged {compression.title}, or cannot be read ({message})") from error


GZIP = Compression("gzip", b"\x1f\x8b", _gzip)
ZSTANDARD = Compression("Zstandard", b"\x28\xb5\x2f\xfd", _zstandard)
