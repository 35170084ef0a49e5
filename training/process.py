"""Which process a number means: the clock may jump, and numbers are given again. No JAX."""

import os
from pathlib import Path


def began(pid: int) -> float | None:
    """Returns when a process of this machine began, in seconds since the machine did; None where that is not told."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # proc_pid_stat(5): the name in brackets may hold anything; the 22nd field counts from before it.
        return int(told.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
