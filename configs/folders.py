"""Folders of one user: where caches lie, and those that nobody else may enter. No JAX."""

import os
import stat
from pathlib import Path

from configs.errors import UserError


def cache_dir() -> Path:
    """Returns where caches lie: $ABLAX_CACHE, else the platform's cache folder for the user."""
    given = os.environ.get("ABLAX_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ablax"


def private(folder: Path, what: str) -> Path:
    """Returns a folder that its user alone may enter, made if need be; for files that are executed when they are read.

    Raises:
        UserError: it exists and is not so; `what` names what lies there.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise UserError(f"{folder}: {what} must be its user's own; this folder belongs to user {status.st_uid}")
    mode = stat.S_IMODE(status.st_mode)
    if hasattr(os, "getuid") and mode & 0o077:
        raise UserError(
            f"{folder}: {what} must be open to its user alone (mode 0700, is {mode:04o}): chmod 700 {folder}"
        )
    return folder


def own(folder: Path, *names: str) -> None:
    """Makes sure that what is written below a folder stays there.

    Raises:
        UserError: one of `names` in it is a link that leads out of it.
    """
    for name in names:
        path = folder / name
        if path.is_symlink() and folder.resolve() not in path.resolve().parents:
            raise UserError(f"{path}: is a symlink to {path.resolve()}, outside; refusing to write through it")
