"""The persistent compilation cache, shared by every run of one user."""

import jax

from configs.folders import cache_dir, private
from training.runtime import allocator, settings, startup


def enable_cache() -> None:
    """Turns the persistent compilation cache on, for programs of any size and compile time.

    It is what every command does first, before JAX's threads start; so the allocator is told here too, the
    settings that results depend on are pinned, and a JAX that does not start is told.

    Raises:
        UserError: others may enter its folder, what lies there is executed; or JAX does not start.
    """
    startup.flags()
    settings.pin()
    allocator.keep_freed_memory()
    folder = private(cache_dir() / "compiled", "the compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    startup.backend()
