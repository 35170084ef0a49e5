"""Shared parts of trackers: the protocol, the config as a flat table, and the id with which a resumed run continues."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ml_collections import ConfigDict

from configs import fields
from training.run_directory.files import read_json, write_json

FILE = "tracker.json"  # in the run directory: {tracker: {"id": ..., ...}}


class Tracker(Protocol):
    """A destination of metrics."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""

    def close(self, status: str) -> None:
        """Ends this process's part; `status` is run.json's."""


def hyperparameters(config: ConfigDict) -> dict[str, bool | int | float | str]:
    """Returns the resolved config as one flat table; unset fields are "unset", lists are JSON."""
    flat = fields.flatten(config)
    plain = (bool, int, float, str)
    return {name: value if isinstance(value, plain) else _text(value) for name, value in flat.items()}


def _text(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)


def names(config: ConfigDict, workdir: Path) -> tuple[str, str | None]:
    """Returns (name, group): in a sweep directory SWEEP/runs/ARM/seedK they are "ARM/seedK" and "SWEEP"."""
    arm, runs = workdir.parent, workdir.parent.parent
    if runs.name == "runs" and (runs.parent / "sweep.json").exists():
        return f"{arm.name}/{workdir.name}", runs.parent.name
    return config.name or workdir.name, None


def remembered(workdir: Path, tracker: str) -> dict[str, Any]:
    """Returns a tracker's values stored in a run directory; empty if there are none."""
    path = workdir / FILE
    values = read_json(path) if path.exists() else {}
    kept = values.get(tracker) if isinstance(values, dict) else None
    return kept if isinstance(kept, dict) else {}


def remember(workdir: Path, tracker: str, values: Mapping[str, Any]) -> None:
    """Stores a tracker's values in a run directory, beside those of others."""
    path = workdir / FILE
    others = read_json(path) if path.exists() else {}
    write_json(path, {**(others if isinstance(others, dict) else {}), tracker: dict(values)})
