"""Trackers: destinations of metrics beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow. None is required.

Each tracker gets the lines of metrics.jsonl. A failure is reported once and never ends a run: the files of the run
directory are the record. A tracker is a file here and a line of TRACKERS.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs.errors import UserError, nearest
from configs.redaction import redacted
from training.loop.trackers.mlflow import MLflow
from training.loop.trackers.tensorboard import TensorBoard
from training.loop.trackers.tracker import Tracker as Tracker
from training.loop.trackers.wandb import WandB

# By `config.tracker`: a class whose objects are Trackers, made from (config, workdir).
TRACKERS: dict[str, Callable[[ConfigDict, Path], Tracker]] = {"wandb": WandB, "mlflow": MLflow}


def opened(config: ConfigDict, workdir: Path, resume_step: int) -> list[Tracker]:
    """Returns the trackers requested by a config; on resume each continues its own run.

    Raises:
        UserError: the package is not installed, or the tracker does not accept the run.
    """
    results: list[Tracker] = []
    if config.log.tensorboard:
        results.append(TensorBoard(config, workdir, resume_step))
    if config.tracker != "none":
        results.append(tracker(config.tracker)(config, workdir))
    return results


def tracker(name: str) -> Callable[[ConfigDict, Path], Tracker]:
    """Returns the factory of a tracker.

    Raises:
        UserError: there is none with that name.
    """
    if name not in TRACKERS:
        raise UserError(f"tracker = {name!r}: must be none, {', '.join(TRACKERS)}{nearest(name, TRACKERS)}")
    return TRACKERS[name]


class Guarded:
    """A tracker whose first failure is reported by `say` and ends the tracker, not the run."""

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
        except Exception as error:  # whatever a tracker raises, the run continues
            self.tracker = None
            self.say(f"{self.name} stopped, the run continues: {redacted(f'{type(error).__name__}: {error}')}")
