"""Environments with the packages of the compared projects, which are not dependencies of this one."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError

TORCH = ("torch==2.13.0", "transformers", "safetensors", "numpy")
# MaxText's imports for training on a CPU; its own requirement lists are for TPUs and CUDA, with those devices'
# libraries.
MAXTEXT = tuple(
    "maxtext==0.2.5 jax flax optax orbax-checkpoint grain qwix aqtp tokamax google-tunix drjax pathwaysutils omegaconf "
    "pydantic ml_collections absl-py sentencepiece tiktoken transformers datasets cloud-accelerator-diagnostics "
    "tensorboardX psutil pyyaml jsonlines jinja2 pillow sympy".split()
)
MAXTEXT_PYTHON = "python3.12"


def environment(folder: Path, packages: Sequence[str] = TORCH, python: str = sys.executable) -> Path:
    """Returns the Python of an environment with PyTorch and transformers (or other packages), made at the first call.

    Raises:
        UserError: `python` does not exist.
    """
    result = folder / "bin" / "python"
    if not (folder / ".made").exists():
        if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
            raise UserError(f"{python}: cannot be run on this machine, but {packages[0]} needs it")
        print(f"making {folder} with {' '.join(packages)} ...", flush=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([result, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / ".made").touch()
    return result
