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
    """One run of Weights & Biases per run directory, whichever process works on it.

    WORKDIR/tracker.json has the run's id, so that a resumed run continues it. Project, mode, host and key come from
    wandb's own variables (WANDB_PROJECT, WANDB_MODE, WANDB_API_KEY, ...) and `wandb login`: they are never config
    fields, so they reach neither config.json nor the report.
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
        address = (self.run.url or "").split("?")[0]  # an anonymous run's key follows the "?"
        remember(workdir, "wandb", {"id": self.run.id, "url": address})

    def write(self, line: Mapping[str, Any]) -> None:
        """Logs the line at its step; steps logged before the resume are not repeated."""
        self.run.log({key: value for key, value in line.items() if key != "step" and value is not None}, line["step"])

    def close(self, status: str) -> None:
        """Sends what is left and ends the run; every status but `done` is shown there as a failure."""
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "done" else 1)
