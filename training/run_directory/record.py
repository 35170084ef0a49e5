"""run.json: a run's identity, environment and status."""

import datetime
import functools
import importlib.metadata
import math
import os
import platform
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import fields, provenance, redaction
from configs.errors import UserError
from models import counting, kernels
from models.platform import current
from training.run_directory.files import read_json, write_json
from training.runtime import process, settings
from training.step import mesh as meshes
from training.step.optimizers import state_bytes

PACKAGES = "jax jaxlib flax optax orbax-checkpoint grain tensorflow-datasets numpy ml-collections".split()


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that affect results."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}}


@functools.cache
def git_state() -> tuple[str | None, bool | None]:
    """Returns (commit of the checkout, whether tracked files differ from it); None without git."""
    checkout = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", checkout, *arguments], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    status = git("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def now() -> str:
    """Returns the time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def compute_dtype(config: ConfigDict) -> str:
    """Returns the compute dtype that `model.dtype` selects on this platform."""
    if config.model.dtype != "auto":
        return config.model.dtype
    return "float32" if current() == "cpu" else "bfloat16"


def describe(config: ConfigDict, data: dict[str, Any], mesh: Mesh | None = None) -> dict[str, Any]:
    """Returns the part of run.json that is known before the first step."""
    commit, dirty = git_state()
    device = jax.devices()[0]
    element = {"float32": 4, "bfloat16": 2}[compute_dtype(config)]
    packed = config.data.packing == "segments" and config.data.weights.text > 0
    return {
        "schema": 1,
        "name": config.name,
        "status": "running",
        "error": None,
        "incidents": [],  # external faults: damaged checkpoints, data workers that died
        "started": now(),
        "updated": now(),
        "step": 0,
        "tokens": 0,
        "flops": 0.0,
        "budget": config.budget.to_dict(),
        "seed": config.seed,
        "init_from": config.init_from,
        "identity": provenance.identity(fields.to_dict(config), None if config.init_from else []),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": versions(),
        "jax_settings": settings.in_force(),  # those that are not the default
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_began": process.began(os.getpid()),  # seconds since boot
        "devices": [{"kind": device.device_kind, "platform": device.platform, "count": mesh.size if mesh else 1}],
        "mesh": meshes.described(mesh),
        "processes": jax.process_count(),
        "data": data,
        "parameters": counting.parameters(config.model),
        "optimizer": {"kind": config.optimizer.kind, "state_bytes": state_bytes(config.model, config.optimizer)},
        "flops_per_token": counting.flops_per_token(config.model, config.data.length),
        "kv_bytes_per_token": counting.kv_bytes_per_token(config.model, element),
        "attention_kernel": kernels.kernel_for(
            config.model,
            length=config.data.length,
            platform=device.platform,
            packed=packed,
            cut=mesh is not None and mesh.shape["context"] > 1,
        ),
        "dtype": compute_dtype(config),
        "wall_time": {"compile": 0.0, "train": 0.0, "eval": 0.0, "total": 0.0},
        "train_loss": None,
        "val_loss": None,
        "best_val_loss": None,
    }


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a run.json; empty if there is none.

    Raises:
        UserError: it is invalid, or declares a run done without its results.
    """
    result = read_json(path) if path.exists() else {}
    if not isinstance(result, dict):
        raise UserError(f"{path}: must be an object, not {str(result)[:40]}")
    missing = [name for name in ("step", "val_loss", "error") if name not in result]
    if result.get("status") == "done" and missing:
        raise UserError(f"{path}: declares the run done, but has no {missing[0]}")
    return result


class Record:
    """run.json of one run directory, rewritten atomically at every change; only kept in memory unless it `writes`."""

    every = 1.0  # seconds between writes of mere progress: each takes an fsync, and a tiny run has ten lines per second

    def __init__(self, workdir: Path, values: dict[str, Any], *, writes: bool = True) -> None:
        self.path = workdir / "run.json"
        self.values, self.writes = values, writes
        self.written = -math.inf  # time of the last write, on the monotonic clock

    def update(self, **values: Any) -> None:
        """Sets fields and writes the file."""
        self.values |= values | {"updated": now()}
        if self.writes:
            # If the run directory has just vanished, nothing is created in its place.
            write_json(self.path, redaction.clean(self.values), folders=False)
        self.written = time.monotonic()

    def progress(self, **values: Any) -> None:
        """Sets fields; writes the file if the last write is `every` seconds ago, else leaves them to the next write.

        A killed run leaves a run.json that is behind by that much; metrics.jsonl has its actual progress.
        """
        if time.monotonic() - self.written >= self.every:
            self.update(**values)
        else:
            self.values |= values
