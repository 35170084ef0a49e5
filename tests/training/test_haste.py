"""Flags of XLA's for compiling in haste: a version that does not know one of them ends the process."""

import os
import subprocess
import sys

from training.runtime import fast_compile


def test_flags_are_those_that_the_version_here_knows() -> None:
    result = "from training.runtime.fast_compile import hasten; hasten(); import jax; print(jax.numpy.ones(2).sum())"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", result], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "2.0", done.stderr
    assert fast_compile.OLDER in fast_compile.flags("0.10.2") and fast_compile.OLDER not in fast_compile.flags(
        "0.12.0.1"
    )


def test_flags_of_the_users_own_stay(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    fast_compile.hasten()
    assert os.environ["XLA_FLAGS"] == ""
