"""The environment with PyTorch and transformers that benches compare with; they are no dependencies of the project."""

import subprocess
import sys
from pathlib import Path

PACKAGES = ("torch==2.13.0", "transformers", "safetensors", "numpy")


def environment(folder: Path) -> Path:
    """Returns the Python of an environment with PyTorch and transformers, made at the first call."""
    python = folder / "bin" / "python"
    if not (folder / ".made").exists():
        print(f"making {folder} with {' '.join(PACKAGES)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / ".made").touch()
    return python
