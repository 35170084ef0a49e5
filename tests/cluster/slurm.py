"""A Slurm to test with: the one that answers here, or one that is started for it (tests/cluster/slurm.sh)."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock
import pytest

from sweeps.launchers.queues import squeue

SCRIPT = Path(__file__).with_name("slurm.sh")


def require():
    """Makes sure that a cluster answers; skips the test where Slurm is not installed, fails where it does not start."""
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing and not squeue.answers():
        pytest.skip(f"Slurm is not installed here: no {missing[0]} (Debian: apt-get install slurm-wlm munge)")
    with filelock.FileLock(Path(tempfile.gettempdir()) / "ablax-slurm.lock"):
        if squeue.answers():
            return
        if os.getuid() != 0:
            pytest.skip(
                "Slurm is installed but no cluster answers, and only root can start one (tests/cluster/slurm.sh)"
            )
        subprocess.run([str(SCRIPT), "start"], check=True, timeout=60)
