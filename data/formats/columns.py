"""Parquet and Arrow files: one column, read a batch of rows at a time.

Arrow files are in the file format (Feather 2) or the stream format, which Hugging Face `datasets` saves.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import UserError
from data.formats.format import Columns

ROWS = 1024  # rows of Parquet decoded at once
PARQUET_MAGIC, ARROW_MAGIC, STREAM_MAGIC = b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff"


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[tuple[pa.Schema, Any]]:
    with pq.ParquetFile(path) as file:
        yield file.schema_arrow, lambda name: file.iter_batches(ROWS, columns=[name])


@contextlib.contextmanager
def _arrow(path: Path) -> Iterator[tuple[pa.Schema, Any]]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        yield reader.schema, lambda name: (reader.get_batch(i) for i in range(reader.num_record_batches))


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[tuple[pa.Schema, Any]]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        yield reader.schema, lambda name: iter(reader)


def holds_tokens(columns: Columns, path: Path, field: str) -> bool:
    """Returns whether a file's column has lists of token ids; otherwise it has text.

    Raises:
        UserError: the file is damaged, has no such column, or the column has another type.
    """
    with _damage_told(columns, path), columns.open(path) as (schema, _):
        if field not in schema.names:
            raise UserError(
                f"{path}: has no column {field!r} (data.field); it has {', '.join(schema.names[:20]) or 'none'}"
            )
        kind = schema.field(field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            if pa.types.is_integer(kind.value_type):
                return True
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return False
        raise UserError(f"{path}: column {field!r} must have text or lists of whole numbers, has {kind}")


def texts(columns: Columns, path: Path, field: str) -> Iterator[str]:
    """Yields the texts of a column in order, empty for missing values."""
    with _damage_told(columns, path), columns.open(path) as (_, batches):
        for batch in batches(field):
            yield from (text or "" for text in batch.column(batch.schema.get_field_index(field)).to_pylist())


def tokens(columns: Columns, path: Path, field: str) -> Iterator[np.ndarray]:
    """Yields the concatenated ids of a column's lists, one batch of rows at a time, int64 [n]."""
    with _damage_told(columns, path), columns.open(path) as (_, batches):
        for batch in batches(field):
            ids = batch.column(batch.schema.get_field_index(field)).flatten()
            if ids.null_count:
                raise UserError(f"{path}: column {field!r} has lists with missing ids")
            yield ids.cast(pa.int64()).to_numpy(zero_copy_only=False)


@contextlib.contextmanager
def _damage_told(columns: Columns, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        message = " ".join(str(error).split())[:160]
        raise UserError(f"{path}: is damaged {columns.title}, or cannot be read ({message})") from error


PARQUET = Columns("Parquet", PARQUET_MAGIC, _parquet)
ARROW = Columns("Arrow", ARROW_MAGIC, _arrow)
ARROW_STREAM = Columns("an Arrow stream", STREAM_MAGIC, _stream)
