"""JAX's settings: those that the program pins, and those in force that are not the default (for run.json)."""

import ast
import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import jax

from configs.environment import PINNED

# Variables with several flags, each one a setting; and single ones that change what devices compute.
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
OTHERS = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# Set by `compilation.enable_cache` itself.
OURS = (
    "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)  # fmt: skip


def pin() -> None:
    """Sets PINNED in this process, even if JAX was imported before and read them from the environment."""
    for name, value in PINNED.items():
        known = jax.config.values.get(name, value)
        if getattr(known, "value", known) != value:  # some are members of an enumeration
            jax.config.update(name, value)


@functools.cache
def defaults() -> dict[str, Any]:
    """Returns the defaults of JAX's settings from its own source, if they are plain values.

    JAX exposes a setting's value but not its default, which its environment variable replaces at import.
    """
    results = {}
    spec = importlib.util.find_spec("jax")
    assert spec is not None and spec.submodule_search_locations
    path = Path(next(iter(spec.submodule_search_locations))) / "_src" / "config.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        name = given.get("name", node.args[0] if node.args else None)
        default = given.get("default", node.args[1] if len(node.args) > 1 else None)
        if isinstance(name, ast.Constant) and str(name.value).startswith("jax_") and isinstance(default, ast.Constant):
            results[str(name.value)] = default.value
    return results


def in_force() -> dict[str, str]:
    """Returns JAX's and XLA's settings that are not the default, by their environment variables."""
    known = defaults()
    results = {
        name.upper(): str(value)
        for name, value in jax.config.values.items()
        if name in known and value != known[name] and name not in OURS
    }
    for name, text in os.environ.items():
        setting = name.lower()
        if name.startswith("JAX_") and setting not in known and setting not in PINNED and setting not in OURS:
            results[name] = text
    for variable in FLAGS:
        for flag in os.environ.get(variable, "").split():
            name, _, value = flag.partition("=")
            results[f"{variable} {name}"] = value or "true"
    results |= {name: os.environ[name] for name in OTHERS if name in os.environ}
    return dict(sorted(results.items()))
