"""TensorBoard event files, without TensorFlow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs.errors import UserError
from training.loop.trackers.tracker import hyperparameters

WATCHED = ("train_loss", "val_loss")  # the metrics in the table of hyperparameters


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
