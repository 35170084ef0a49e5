"""Trackers: where metrics go beside metrics.jsonl. TensorBoard's event files, and Weights & Biases; none is required.

Each tracker gets the very lines that metrics.jsonl gets. What it cannot take is told once and never ends a run: the
files of the run directory are the record, a tracker is a view of them.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ml_collections import ConfigDict

from configs import fields
from configs.errors import UserError, nearest
from configs.redaction import redacted
from training.run_directory.files import read_json, write_json

WATCHED = ("train_loss", "val_loss")  # the metrics that TensorBoard's table of hyperparameters shows


class Tracker(Protocol):
    """Somewhere that metrics go."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""

    def close(self, status: str) -> None:
        """Ends this process's part; `status` is run.json's."""


def opened(config: ConfigDict, workdir: Path, resume_step: int) -> list[Tracker]:
    """Returns the trackers a config asks for; on resume each goes on with the run it had.

    Raises:
        UserError: the package is not installed, or Weights & Biases does not take the run.
    """
    results: list[Tracker] = []
    if config.log.tensorboard:
        results.append(TensorBoard(config, workdir, resume_step))
    if config.tracker != "none":
        results.append(tracker(config.tracker)(config, workdir))
    return results


class Guarded:
    """A tracker whose failures are told once, by `say`, and end the tracker instead of the run."""

    def __init__(self, tracker: Tracker, say: Callable[[str], None]) -> None:
        self.tracker: Tracker | None = tracker
        self.name, self.say = type(tracker).__name__, say

    def write(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""
        self._call(lambda tracker: tracker.write(line))

    def close(self, status: str) -> None:
        """Ends this process's part."""
        self._call(lambda tracker: tracker.close(status))

    def _call(self, act: Callable[[Tracker], None]) -> None:
        if self.tracker is None:
            return
        try:
            act(self.tracker)
        except Exception as error:  # whatever a tracker raises, the run goes on
            self.tracker = None
            self.say(f"{self.name} stopped, the run continues: {redacted(f'{type(error).__name__}: {error}')}")


def hyperparameters(config: ConfigDict) -> dict[str, bool | int | float | str]:
    """Returns the resolved config as one flat table; unset fields are "unset", lists are JSON."""
    flat = fields.flatten(config)
    plain = (bool, int, float, str)
    return {name: value if isinstance(value, plain) else _text(value) for name, value in flat.items()}


def _text(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)


class TensorBoard:
    """Event files in WORKDIR/tensorboard, with the config as hyperparameters. Needs no TensorFlow."""

    def __init__(self, config: ConfigDict, workdir: Path, resume_step: int) -> None:
        try:
            from tensorboardX import SummaryWriter, summary
        except ImportError as error:
            raise UserError(f"log.tensorboard = True: needs the package tensorboardX ({error})") from None
        self.writer = SummaryWriter(str(workdir / "tensorboard"), purge_step=resume_step + 1, write_to_disk=True)
        experiment, start, self.end = summary.hparams(hyperparameters(config), dict.fromkeys(WATCHED))
        self._add(experiment, start)

    def _add(self, *summaries: Any) -> None:
        for one in summaries:
            self.writer.file_writer.add_summary(one)

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes every number of the line at its step."""
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, line["step"])

    def close(self, status: str) -> None:
        """Closes the files; only a finished run's session ends as a success."""
        if status == "done":
            self._add(self.end)
        self.writer.close()


class WandB:
    """One run of Weights & Biases for each run directory, whichever process works on it.

    WORKDIR/tracker.json keeps the run's id, so that a resumed run goes on with it. Project, mode, host and key are
    those of wandb's own variables (WANDB_PROJECT, WANDB_MODE, WANDB_API_KEY, ...) and of `wandb login`: no field holds
    them, so that they reach neither config.json nor the report.
    """

    def __init__(self, config: ConfigDict, workdir: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(f"tracker = wandb: needs the package wandb, the extra `wandb` ({error})") from None
        path = workdir / "tracker.json"
        known = read_json(path).get("wandb", {}) if path.exists() else {}
        name, group = _names(config, workdir)
        quiet = wandb.Settings(console="off", disable_git=True, save_code=False, silent=True)
        try:
            self.run = wandb.init(
                id=known.get("id") or secrets.token_hex(4),
                resume="allow",
                dir=str(workdir),
                name=os.environ.get("WANDB_NAME") or name,
                group=os.environ.get("WANDB_RUN_GROUP") or group,
                project=os.environ.get("WANDB_PROJECT") or "ablax",
                config=fields.to_dict(config),
                settings=quiet,
            )
        except Exception as error:
            message = redacted(" ".join(str(error).split()))
            raise UserError(f"tracker = wandb: {message} (WANDB_MODE=offline keeps it on this machine)") from None
        address = (self.run.url or "").split("?")[0]  # behind it an anonymous run carries a key
        write_json(path, {"wandb": {"id": self.run.id, "url": address}})

    def write(self, line: Mapping[str, Any]) -> None:
        """Logs the line at its step; steps that the run had before it was resumed are not logged twice."""
        self.run.log({key: value for key, value in line.items() if key != "step" and value is not None}, line["step"])

    def close(self, status: str) -> None:
        """Sends what is left and ends the run; every status but `done` shows there as a failure."""
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "done" else 1)


def _names(config: ConfigDict, workdir: Path) -> tuple[str, str | None]:
    """Returns (name, group): in a sweep directory SWEEP/runs/ARM/seedK they are "ARM/seedK" and "SWEEP"."""
    arm, runs = workdir.parent, workdir.parent.parent
    if runs.name == "runs" and (runs.parent / "sweep.json").exists():
        return f"{arm.name}/{workdir.name}", runs.parent.name
    return config.name or workdir.name, None


# By `config.tracker`: a class whose objects are Trackers, made from (config, workdir).
TRACKERS: dict[str, Callable[[ConfigDict, Path], Tracker]] = {"wandb": WandB}


def tracker(name: str) -> Callable[[ConfigDict, Path], Tracker]:
    """Returns what opens a tracker.

    Raises:
        UserError: there is none of that name.
    """
    if name not in TRACKERS:
        raise UserError(f"tracker = {name!r}: must be none, {', '.join(TRACKERS)}{nearest(name, TRACKERS)}")
    return TRACKERS[name]
