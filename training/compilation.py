"""The persistent compilation cache, shared by every run of one user."""

import os
import stat
from pathlib import Path

import jax

from configs.errors import UserError
from training import allocator


def cache_dir() -> Path:
    """Returns where caches lie: $ABLAX_CACHE, else the platform's cache folder for the user."""
    given = os.environ.get("ABLAX_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ablax"


def private(folder: Path) -> Path:
    """Makes a folder that only its user may enter, since what lies in a compilation cache is executed.

    Raises:
        UserError: it exists and belongs to, or is writable by, somebody else.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022):
        raise UserError(f"{folder}: the compilation cache must be writable by its owner alone; chmod 700 it")
    return folder


def enable_cache() -> None:
    """Turns the persistent compilation cache on, for programs of any size and compile time.

    It is what every command does first, before JAX's threads start; so the allocator is told here too.
    """
    allocator.keep_freed_memory()
    folder = private(cache_dir() / "compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
