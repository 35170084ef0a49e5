"""Whether JAX starts here, checked before work is lost: platform and XLA's flags. Imports JAX only in `backend`."""

import functools
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys

from configs.errors import UserError
from configs.folders import cache_dir

PROBE = "import jax; jax.devices()"
PATIENCE = 120.0  # seconds


def flags() -> None:
    """Checks that XLA knows the flags in XLA_FLAGS: it ends the whole process at an unknown one.

    A subprocess tests them, once for each value of XLA_FLAGS and version of jaxlib.

    Raises:
        UserError: with the flag.
    """
    given = os.environ.get("XLA_FLAGS", "").strip()
    unknown = _unknown(given) if given else ""
    if unknown:
        raise UserError(f"XLA_FLAGS={given}: XLA {importlib.metadata.version('jaxlib')} does not know {unknown}")


@functools.cache
def _unknown(given: str) -> str:
    """Returns the flags that XLA does not know; empty if it knows all."""
    version = importlib.metadata.version("jaxlib")
    known = cache_dir() / "xla_flags" / hashlib.sha256(f"{version} {given}".encode()).hexdigest()[:32]
    if known.exists():
        return ""
    command = [sys.executable, "-c", PROBE]
    try:
        env = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=env, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if result := re.search(r"Unknown flags? in XLA_FLAGS: *(.+)", done.stderr):
        return result[1].strip()
    if done.returncode == 0:
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    return ""


def backend() -> None:
    """Checks that JAX has its configured platform.

    Raises:
        UserError: with JAX's own reason.
    """
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        raise UserError(refused(str(error))) from error


def refused(said: str) -> str:
    """Returns in one line why JAX does not start; `said` is its own message, which may be empty."""
    requested = os.environ.get("JAX_PLATFORMS", "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = re.sub(r"^\w+Error:?\s*", "", lines[-1] if lines else "")
    where = f"JAX_PLATFORMS={requested}" if requested else "JAX"
    return f"{where}: JAX does not start here: {reason or 'it finds no such device'}"
