"""The cache folder. Entries are complete or absent, and built once, however many processes need them."""

import json
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from configs.errors import UserError

MARKER = "complete.json"
_VERIFIED: set[tuple[str, int]] = set()  # entries that this process has verified, with their markers' mtimes


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
    """Returns the folder `name` of the cache, created if needed, that no other user can write to.

    Raises:
        UserError: the folder cannot be created, or other users could write to it.
    """
    folder = root(cache_dir) / name
    advice = "set data.cache_dir or ABLAX_CACHE to a private folder"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        result = folder.stat()
    except OSError as error:
        raise UserError(f"the cache folder {folder} cannot be created ({error.strerror}); {advice}") from error
    if sys.platform != "win32":
        user = os.geteuid()
        if result.st_uid != user and user != 0:
            raise UserError(f"the cache folder {folder} belongs to another user; {advice}")
        if result.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UserError(f"the cache folder {folder} is writable by others; {advice}, or run chmod go-w on it")
    return folder


def entry(folder: Path, build: Callable[[Path], None]) -> Path:
    """Returns the cache entry `folder`, building it if it is missing or incomplete.

    `build` fills an empty folder, which is then renamed into place: readers see all of it or nothing. One process
    builds; the others wait. The next process removes what a killed one left behind. An entry with a missing, truncated
    or changed file is rebuilt; every process verifies each file once when it opens the entry.

    Raises:
        UserError: the disk is full or not writable; or from `build`.
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
        files = {str(p.relative_to(work)): p for p in sorted(work.rglob("*")) if p.is_file()}
        marker = work / MARKER
        with marker.open("w") as file:
            json.dump({name: [path.stat().st_size, _checksum(path)] for name, path in files.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _whole(folder: Path) -> bool:
    """Whether the entry exists with every file as it was written (full disks, clean-ups and bad disks change files)."""
    marker = folder / MARKER
    try:
        written = json.loads(marker.read_text())
        known = (str(folder), marker.stat().st_mtime_ns)
        for name, about in written.items():
            size, checksum = about if isinstance(about, list) else (about, None)  # older markers have only sizes
            if (folder / name).stat().st_size != size:
                return _damaged(folder, name)
            if known not in _VERIFIED and checksum not in (None, _checksum(folder / name)):
                return _damaged(folder, name)
    except (OSError, ValueError, AttributeError) as error:
        return _damaged(folder, error) if folder.exists() else False
    _VERIFIED.add(known)
    return True


def _damaged(folder: Path, what: object) -> bool:
    print(f"the cache entry {folder} is damaged ({what}): rebuilt", file=sys.stderr, flush=True)
    return False


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total
