"""What every test shares: a compilation cache, so that a second run of the tests is quick."""

import os
import tempfile
from pathlib import Path

import hypothesis

# A busy machine is no failure.
hypothesis.settings.register_profile("ablax", deadline=None)
hypothesis.settings.load_profile("ablax")

# Before JAX is imported anywhere. One folder for all workers of one user; corpora and compiled programs are shared.
os.environ.setdefault("ABLAX_CACHE", str(Path(tempfile.gettempdir()) / f"ablax-tests-{os.getuid()}"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.environ["ABLAX_CACHE"] + "/compiled")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
