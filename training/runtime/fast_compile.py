"""Fast compilation for programs that run once, whose optimization would take longer than everything else. No JAX."""

import importlib.metadata
import os

FLAGS = ("xla_backend_optimization_level=0", "xla_cpu_parallel_codegen_split_count=1")
# XLA's older emitters of fusions, in modules that are not split, compile fastest; JAX 0.11 and later have none, and
# exit at an unknown flag.
OLDER = "xla_cpu_use_fusion_emitters=false"


def hasten() -> None:
    """Makes XLA compile with little optimization; a user's XLA_FLAGS, even if empty, stays.

    Must be called before JAX compiles anything.
    """
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--{flag}" for flag in flags(importlib.metadata.version("jaxlib"))))


def flags(version: str) -> tuple[str, ...]:
    """Returns the flags that a version of jaxlib knows."""
    major, minor = map(int, version.split(".")[:2])
    return (*FLAGS, OLDER) if (major, minor) < (0, 11) else FLAGS
