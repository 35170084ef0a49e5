"""The persistent compilation cache, shared by every run of one user."""

import os
from pathlib import Path

import jax

from training import allocator
from training.files import private


def cache_dir() -> Path:
    """Returns where caches lie: $ABLAX_CACHE, else the platform's cache folder for the user."""
    given = os.environ.get("ABLAX_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ablax"


def enable_cache() -> None:
    """Turns the persistent compilation cache on, for programs of any size and compile time.

    It is what every command does first, before JAX's threads start; so the allocator is told here too.

    Raises:
        UserError: others may enter its folder; what lies there is executed.
    """
    allocator.keep_freed_memory()
    folder = private(cache_dir() / "compiled", "the compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
