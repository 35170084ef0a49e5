"""Weights & Biases."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import fields
from configs.errors import UserError
from configs.redaction import redacted
from training.loop.trackers.tracker import names, remember, remembered


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
        known = remembered(workdir, "wandb")
        name, group = names(config, workdir)
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
        remember(workdir, "wandb", {"id": self.run.id, "url": address})

    def write(self, line: Mapping[str, Any]) -> None:
        """Logs the line at its step; steps that the run had before it was resumed are not logged twice."""
        self.run.log({key: value for key, value in line.items() if key != "step" and value is not None}, line["step"])

    def close(self, status: str) -> None:
        """Sends what is left and ends the run; every status but `done` shows there as a failure."""
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "done" else 1)
