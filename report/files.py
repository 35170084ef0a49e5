"""Atomic file writes: a reader sees the old content or the new, never a part of either."""

import os
import tempfile
from pathlib import Path

from configs.redaction import redacted


def write(path: Path, content: str | bytes) -> None:
    """Writes a file by temporary name, fsync and rename; the folder must exist. Secrets are removed from text."""
    raw = redacted(content).encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
