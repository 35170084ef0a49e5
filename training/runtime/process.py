"""Identity of a process id (the clock may jump, and ids are reused), and how a process ended. No JAX."""

import os
import signal
from pathlib import Path


def began(pid: int) -> float | None:
    """Returns when a process of this machine started, in seconds since boot; None if unknown."""
    try:
        message = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # proc_pid_stat(5): the name in brackets may contain anything; the 22nd field is counted after it.
        return int(message.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def ended(code: int) -> str:
    """Returns in words how a process ended, from the exit code of `subprocess` and `multiprocessing`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
