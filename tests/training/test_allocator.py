"""Memory that a step frees is there for the next one, without page faults."""

import subprocess
import sys

import pytest

from training.runtime import allocator

FAULTS = """
import resource
import numpy as np
from training.runtime import allocator
if {keep}:
    assert allocator.keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24, np.float32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has the switches")
def test_no_page_faults_once_memory_was_used() -> None:
    def second(keep: bool) -> int:
        line = [sys.executable, "-c", FAULTS.format(keep=keep)]
        return int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)

    assert second(True) < 100
    assert second(False) > 100  # so that something was measured


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_settings_of_ones_own_stay(monkeypatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_freed_memory.__wrapped__()
