"""Files written whole: a temporary name, fsync, rename, so that a reader never sees half of one."""

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
    """Tells whether a run has taken a step that is kept: a checkpoint is there, or a line of metrics."""
    metrics = workdir / "metrics.jsonl"
    kept = any(path.name.isdigit() for path in (workdir / "checkpoints").glob("*"))
    return kept or (metrics.is_file() and metrics.stat().st_size > 0)


@contextmanager
def replacing(path: str | Path, *, folders: bool = True) -> Iterator[Path]:
    """Gives a temporary file to write, which takes the name `path` in one step at the end; `folders` are made."""
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
    """Replaces a file by `text` in one step; `folders` are made."""
    with replacing(path, folders=folders) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def finite(value: Any) -> Any:
    """Returns a JSON value in which NaN and infinities, which JSON has no words for, are None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value: Any, *, folders: bool = True) -> None:
    """Replaces a JSON file in one step; numbers that are not finite become null; `folders` are made."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n", folders=folders)


def read_lines(path: str | Path, torn: Literal["end", "skip"] = "end") -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON-lines file up to the first torn line (a run killed while writing leaves one).

    With `torn` = skip, lines after a torn one are given too.
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
