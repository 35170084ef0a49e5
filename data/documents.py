"""Documents from files: selecting files, reading them, and assigning documents to splits."""

import codecs
import fnmatch
import functools
import glob
import hashlib
import io
import json
import os
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import UserError
from data import formats
from data.formats import columns, compressed, unsupported


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus. `name` is its path relative to the corpus, with forward slashes on every system."""

    name: str
    path: Path
    size: int  # bytes
    sha256: str  # of the file's bytes


@dataclass(frozen=True)
class Document:
    """A text with a name that is the same on every machine: the file's name, and for JSON lines the line."""

    name: str
    text: str


# Tests, installed packages, and files that differ between builds of one Python version.
LEFT_OUT_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
JSON_LINES = (".jsonl", ".ndjson")
LEFT_OUT_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize")


def stdlib_files() -> list[SourceFile]:
    """Returns the Python standard library's own sources, sorted by name.

    Raises:
        UserError: this Python has no library sources.
    """
    base = Path(sysconfig.get_paths()["stdlib"])
    results = []
    for folder, folders, names in os.walk(base):
        # Not searched: installed packages can be ten times the library.
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS and not name.startswith("config-")]
        for name in fnmatch.filter(names, "*.py"):
            path = Path(folder, name)
            if not name.startswith(LEFT_OUT_FILES) and path.is_file():
                about = path.stat()
                results.append(_of_stdlib(path, base, (about.st_ino, about.st_size, about.st_mtime_ns)))
    if len(results) < 100:
        raise UserError(
            f"this Python has no standard library sources in {base} ({len(results)} files); set data.path to a text"
        )
    return sorted(results, key=lambda file: file.name)


@functools.lru_cache(maxsize=4096)
def _of_stdlib(path: Path, base: Path, stamp: tuple[int, ...]) -> SourceFile:
    """Reads a file of the standard library once a process while its `stamp` stays: each run opens all of them twice."""
    return _source_file(path, path.relative_to(base).as_posix())


def matching_files(pattern: str, field: str = "data.path") -> list[SourceFile]:
    """Returns the files that a path or glob names (`**` matches any folders), sorted by name.

    Raises:
        UserError: nothing matches, or a file cannot be read.
    """
    return [_source_file(path, name) for name, path in matching_paths(pattern, field)]


def matching_paths(pattern: str, field: str = "data.path") -> list[tuple[str, Path]]:
    """Returns (name, path) of the files that a path or glob names, sorted by name; see `SourceFile`.

    Args:
        pattern: of the files; `**` matches any folders.
        field: of the config, for messages.

    Raises:
        UserError: nothing matches.
    """
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern) and (of_columns := _of_columns(Path(pattern))):
        return of_columns
    literal = os.path.isfile(pattern)
    paths = [pattern] if literal else [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]
    if not paths:
        if os.path.isdir(pattern):
            raise UserError(f"{field} = {pattern!r}: is a folder; set a glob such as {pattern}/**/*.txt")
        raise UserError(f"{field} = {pattern!r}: no file matches (in {os.getcwd()})")
    for path in paths:
        if not path.isascii() and not _is_utf8(path):
            raise UserError(f"{field}: matches {path!a}, whose name is not UTF-8; rename it")
    base = os.path.dirname(pattern) if literal else _fixed_part(pattern)
    # A pattern with several `**` can match one file more than once.
    return sorted((Path(p).relative_to(base).as_posix(), Path(p)) for p in set(paths))


def _of_columns(folder: Path) -> list[tuple[str, Path]]:
    """Returns (name, path) of a folder's Parquet files, or else of its Arrow files, sorted by name.

    For a data set saved by Hugging Face `datasets` (`save_to_disk`) these are the files listed in its state.json; other
    files beside them are caches.

    Raises:
        UserError: state.json does not list files of its own folder, or a listed file is missing.
    """
    if (state := folder / "state.json").is_file() and (listed := _listed(state)) is not None:
        return listed
    for suffix in ("*.parquet", "*.arrow"):
        if result := [path for path in folder.rglob(suffix) if path.is_file()]:
            return sorted((path.relative_to(folder).as_posix(), path) for path in result)
    return []


def _listed(state: Path) -> list[tuple[str, Path]] | None:
    """Returns a saved data set's files in order, or None if state.json belongs to something else."""
    values = _parsed(state.read_bytes())
    files = values.get("_data_files") if isinstance(values, dict) else None
    if not isinstance(files, list):
        return None
    names = [one.get("filename") if isinstance(one, dict) else None for one in files]
    for name in names:
        if not isinstance(name, str) or name != os.path.basename(name) or not (state.parent / name).is_file():
            raise UserError(f"{state}: lists {name!r}, which is not a file of its folder")
    return [(name, state.parent / name) for name in names if isinstance(name, str)]


def saved_splits(folder: str) -> dict[str, str] | None:
    """Returns {split: folder} of a DatasetDict saved by `datasets`; None if the folder is not one.

    Raises:
        UserError: its dataset_dict.json names missing splits.
    """
    about = Path(os.path.expanduser(folder)) / "dataset_dict.json"
    if not about.is_file():
        return None
    values = _parsed(about.read_bytes())
    names = values.get("splits") if isinstance(values, dict) else None
    for name in names if isinstance(names, list) else [None]:
        if not isinstance(name, str) or name != os.path.basename(name) or not (about.parent / name).is_dir():
            raise UserError(f"{about}: names the split {name!r}, which is not a folder beside it")
    return {name: str(about.parent / name) for name in names or []}


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # undecodable bytes in a path appear as surrogates
        return False
    return True


def _fixed_part(pattern: str) -> str:
    """The folders before the first wildcard, so that names do not depend on the corpus's location."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def _source_file(path: Path, name: str) -> SourceFile:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return SourceFile(name, path, file.tell(), digest)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def read_python(file: SourceFile) -> Iterator[Document]:
    """Yields a Python source file, decoded as it declares (PEP 263); nothing if it is empty or cannot be decoded."""
    content = _content(file)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return
    if text:
        yield Document(file.name, text)


def read_text(file: SourceFile, field: str) -> Iterator[Document]:
    """Yields the documents of a file, without empty ones.

    A Parquet or Arrow file has one document per row, in the column `field`. gzip and Zstandard are decompressed and
    read by the inner name (a.jsonl.gz). JSON lines (.jsonl, .ndjson, or a .json with JSON lines) have one per line,
    under `field`; a .json that is an array of objects which all have `field` has one per object; any other file is one
    document. Line ends and byte order marks are kept.

    Raises:
        UserError: invalid UTF-8 (file and byte offset), a malformed line or a missing field (file and line).
    """
    start = formats.head(file.path)
    if of_columns := formats.of_columns(start):
        _check_unchanged(file)
        if columns.holds_tokens(of_columns, file.path, field):
            raise UserError(f"{file.path}: column {field!r} (data.field) has token ids, and the other files have text")
        texts = enumerate(columns.texts(of_columns, file.path, field), 1)
        yield from (Document(f"{file.name}:{number}", text) for number, text in texts if text)
        return
    compression, suffix = formats.of_compression(start), file.path.suffix.lower()
    if compression is None:
        yield from _plain_text(file, _content(file), suffix, field)
        return
    _check_unchanged(file)
    if suffix in compressed.SUFFIXES:
        suffix = Path(file.path.stem).suffix.lower()
    if suffix in JSON_LINES:
        yield from _json_lines(file, compressed.lines(compression, file.path), field)
    else:
        yield from _plain_text(file, compressed.content(compression, file.path), suffix, field)


def _plain_text(file: SourceFile, content: bytes, suffix: str, field: str) -> Iterator[Document]:
    if suffix in JSON_LINES or (suffix == ".json" and _holds_json_lines(content, field)):
        yield from _json_lines(file, io.BytesIO(content), field)
    elif suffix == ".json" and (texts := _json_array(file, content, field)):
        yield from (Document(f"{file.name}:{number}", text) for number, text in enumerate(texts, 1) if text)
    elif content:
        yield Document(file.name, _decode(content, file.path, 0))


def _holds_json_lines(content: bytes, field: str) -> bool:
    """Whether a .json has JSON lines: its first line is an object, and the rest cannot belong to it.

    A single object on one line counts if it has the field; otherwise it is one document of JSON.
    """
    lines = (line for line in io.BytesIO(content.removeprefix(codecs.BOM_UTF8)) if line.strip())
    first = _parsed(next(lines, b""))
    return isinstance(first, dict) and (next(lines, None) is not None or isinstance(first.get(field), str))


def _json_array(file: SourceFile, content: bytes, field: str) -> list[str]:
    """Returns the texts of an array of objects that all have `field`; empty if it is not one."""
    records = _parsed(content.removeprefix(codecs.BOM_UTF8))
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        return []
    texts = [record.get(field) for record in records]
    if not all(isinstance(text, str) for text in texts):
        return []
    for number, text in enumerate(texts, 1):
        _check_encodes(text, f"{file.path}, object {number}", field)
    return texts


def _parsed(content: bytes) -> Any:
    """Returns a JSON value, or None if it is invalid."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        return None


def _check_encodes(text: str, where: str, field: str) -> None:
    """Refuses unpaired surrogates, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: field {field!r} has an unpaired surrogate") from error


def _json_lines(file: SourceFile, lines: Iterable[bytes], field: str) -> Iterator[Document]:
    start = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{file.path}, line {number}"
            try:
                record = json.loads(_decode(line, file.path, start).rstrip("\r\n"))
            except json.JSONDecodeError as error:
                raise UserError(f"{where}: is not valid JSON ({error.msg} at column {error.colno})") from error
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
                raise UserError(f"{where}: cannot be read as JSON ({error})") from error
            if not isinstance(record, dict):
                raise UserError(f"{where}: must be a JSON object, is {type(record).__name__}")
            if field not in record:
                raise UserError(f"{where}: has no field {field!r} (data.field); it has {', '.join(record) or 'none'}")
            if not isinstance(record[field], str):
                raise UserError(f"{where}: field {field!r} must be text, is {type(record[field]).__name__}")
            _check_encodes(record[field], where, field)
            if record[field]:
                yield Document(f"{file.name}:{number}", record[field])
        start += len(line)


def _decode(content: bytes, path: Path, offset: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        known = unsupported.title(content) if not offset else None
        if known is not None:
            raise UserError(f"{path}: is {known}, which is not supported (see docs/data.md)") from error
        raise UserError(f"{path}: is not valid UTF-8 at byte offset {offset + error.start} ({error.reason})") from error


def _content(file: SourceFile) -> bytes:
    try:
        content = file.path.read_bytes()
    except OSError as error:
        raise UserError(f"{file.path}: cannot be read ({error.strerror})") from error
    _refuse_change(file, hashlib.sha256(content).hexdigest())
    return content


def _check_unchanged(file: SourceFile) -> None:
    _refuse_change(file, _source_file(file.path, file.name).sha256)


def _refuse_change(file: SourceFile, sha256: str) -> None:
    if sha256 != file.sha256:
        raise UserError(f"{file.path}: changed while it was being read; run again")


def split_by_hash(names: Sequence[str], train_share: float) -> list[bool]:
    """Returns for each document whether it trains, by a hash of its name, so that adding files moves no document.

    With two documents or more neither side is empty: the document nearest to the threshold changes sides.
    """
    places = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 for name in names]
    trains = [place < train_share for place in places]
    if len(names) > 1 and len(set(trains)) == 1:
        nearest = min(range(len(names)), key=lambda i: abs(places[i] - train_share))
        trains[nearest] = not trains[nearest]
    return trains
