"""Atomic file writes: a temporary name, fsync, rename, so that a reader never sees a partial file."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from configs.documents import ordinary
from configs.documents import read_json as read_json
from configs.folders import own as own


def begun(workdir: Path) -> bool:
    """Returns whether a run has taken a step that is kept: there is a checkpoint, or a line of metrics."""
    metrics = workdir / "metrics.jsonl"
    kept = any(path.name.isdigit() for path in (workdir / "checkpoints").glob("*"))
    return kept or (metrics.is_file() and metrics.stat().st_size > 0)


@contextmanager
def replacing(path: str | Path, *, folders: bool = True) -> Iterator[Path]:
    """Yields a temporary file, which is renamed to `path` at the end; `folders` are created."""
    path = Path(path)
    if folders:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str, *, folders: bool = True) -> None:
    """Replaces a file by `text` atomically; `folders` are created."""
    with replacing(path, folders=folders) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def finite(value: Any) -> Any:
    """Returns a JSON value with None for NaN and infinities, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any, *, folders: bool = True) -> None:
    """Replaces a JSON file atomically; numbers that are not finite become null; `folders` are created."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n", folders=folders)


def read_lines(path: str | Path, torn: Literal["end", "skip"] = "end") -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON-lines file up to the first torn line (left by a run killed while writing).

    With `torn` = skip, lines after a torn one are yielded too.
    """
    path = Path(path)
    if not path.exists():
        return
    with ordinary(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                value = None
            if line.endswith("\n") and isinstance(value, dict):
                yield value
            elif torn == "end":
                return
