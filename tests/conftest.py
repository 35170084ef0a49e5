"""What every test shares: a compilation cache, and programs compiled in haste, since most run once."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import hypothesis

from training.runtime.fast_compile import hasten

# Before JAX is imported anywhere. One folder for all workers of one user; corpora and compiled programs are shared.
SHARED = Path(tempfile.gettempdir()) / f"ablax-tests-{os.getuid()}"
SHARED.mkdir(mode=0o700, exist_ok=True)
SHARED.chmod(0o700)  # refused where it is somebody else's
os.environ.setdefault("ABLAX_CACHE", str(SHARED))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.environ["ABLAX_CACHE"] + "/compiled")
Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).chmod(0o700)  # of earlier tests: JAX itself makes it for all to read
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Where Python is told to leave no bytecode beside the code, it lies in the same folder: without any, each of some two
# hundred processes would compile every module anew.
if sys.dont_write_bytecode and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(SHARED / "bytecode")
    sys.dont_write_bytecode = False
# Compiling takes most of a test's time, in haste a quarter of it. `make test-all` compiles as users do.
hasten()

# Drawn cases are the same at every run, and none is too slow: it may have to compile. The slow ones draw anew.
hypothesis.settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Leaves modules and tests, which live to the end, out of every later search for garbage; a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
