"""The cache folder: entries written whole or not at all, once, however many processes ask for them."""

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from configs.errors import UserError

MARKER = "complete.json"


def root(cache_dir: str = "") -> Path:
    """Returns the cache folder: `cache_dir`, else $ABLAX_CACHE, else `ablax` in the user's cache folder."""
    given = cache_dir or os.environ.get("ABLAX_CACHE", "")
    return Path(given).expanduser().absolute() if given else _user_cache() / "ablax"


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def private_folder(cache_dir: str, name: str) -> Path:
    """Returns the folder `name` of the cache, made if need be, that nobody else can write to.

    Raises:
        UserError: the folder cannot be made, or others could put their own data into it.
    """
    folder = root(cache_dir) / name
    advice = "set data.cache_dir or ABLAX_CACHE to a folder of your own"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise UserError(f"the cache folder {folder} cannot be made ({error.strerror}); {advice}") from error
    if sys.platform != "win32":
        user = os.geteuid()
        if found.st_uid != user and user != 0:
            raise UserError(f"the cache folder {folder} belongs to another user; {advice}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UserError(f"the cache folder {folder} is open to others' writing; {advice}, or run chmod go-w on it")
    return folder


def entry(folder: Path, build: Callable[[Path], None]) -> Path:
    """Returns the cache entry `folder`, built first if it is not there or not whole.

    `build` fills an empty folder, which is then renamed into place: readers see all of it or nothing. One process
    builds, the others wait for it. What a killed process left behind is removed by the next.

    Raises:
        UserError: the disk is full or not writable; whatever `build` raises.
    """
    if _whole(folder):
        return folder
    try:
        with FileLock(f"{folder}.lock", mode=0o600):
            if not _whole(folder):
                _build(folder, build)
    except OSError as error:
        raise UserError(f"cannot write the cache entry {folder}: {error.strerror or error}") from error
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        build(work)
        sizes = {str(p.relative_to(work)): p.stat().st_size for p in sorted(work.rglob("*")) if p.is_file()}
        marker = work / MARKER
        with marker.open("w") as file:
            json.dump(sizes, file)
            file.flush()
            os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _whole(folder: Path) -> bool:
    """Whether the entry is there with every file at its size (a full disk or a clean-up may have cut it)."""
    try:
        sizes = json.loads((folder / MARKER).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
