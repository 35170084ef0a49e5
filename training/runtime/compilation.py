"""The persistent compilation cache, shared by all runs of one user."""

import jax

from configs.folders import cache_dir, private
from training.runtime import allocator, settings, startup


def enable_cache() -> None:
    """Turns the persistent compilation cache on, for programs of any size and compile time.

    Every command calls this first, before JAX's threads start; so it also sets the allocator, pins the settings that
    results depend on, and reports a JAX that does not start.

    Raises:
        UserError: other users could enter its folder, whose content is executed; or JAX does not start.
    """
    startup.flags()
    settings.pin()
    allocator.keep_freed_memory()
    folder = private(cache_dir() / "compiled", "the compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    startup.backend()
