"""MLflow: one run per run directory, in the store given by MLFLOW_TRACKING_URI."""

import contextlib
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
from ml_collections import ConfigDict

from configs.errors import UserError
from configs.folders import cache_dir
from configs.redaction import redacted
from training.loop.trackers.tracker import hyperparameters, names, remember, remembered

EXPERIMENT = "ablax"  # of runs outside a sweep
STATUSES = {"done": "FINISHED", "preempted": "KILLED"}  # every other status shows as FAILED
PARAMETERS = 100  # per request, MLflow's limit
LONGEST = 6000  # characters of a parameter, MLflow's limit
# MLflow's defaults would report its use over the network, and retry an unreachable server for minutes.
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
MISSING = "RESOURCE_DOES_NOT_EXIST"


class MLflow:
    """One MLflow run per run directory, whichever process works on it.

    WORKDIR/tracker.json has the run's id, so that a resumed run continues it. Store and credentials come from MLflow's
    own variables (MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME, ...); if unset, MLflow's default, `mlflow.db` in the
    current folder. The experiment is MLFLOW_EXPERIMENT_NAME, else the sweep's name.
    """

    def __init__(self, config: ConfigDict, workdir: Path) -> None:
        for key, value in DEFAULTS.items():
            os.environ.setdefault(key, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # otherwise it reports every table that it creates
        with _quiet():
            try:
                from mlflow import MlflowClient, entities
            except ImportError as error:
                raise UserError(f"tracker = mlflow: needs the package mlflow, the extra `mlflow` ({error})") from None
            self.entities = entities
            name, group = names(config, workdir)
            known = remembered(workdir, "mlflow")
            try:
                with _alone():
                    self.client = MlflowClient()
                    self.last = self._resumed(known.get("id")) if known else None
                    if self.last is None:
                        self._create(os.environ.get("MLFLOW_EXPERIMENT_NAME") or group or EXPERIMENT, name, config)
            except Exception as error:
                message = redacted(_without_password(" ".join(str(error).split())))
                here = "MLFLOW_TRACKING_URI=sqlite:////PATH/mlflow.db keeps it on this machine"
                raise UserError(f"tracker = mlflow: {message} ({here})") from None
        remember(workdir, "mlflow", {"id": self.id, "experiment": self.experiment})

    def _resumed(self, run: Any) -> int | None:
        """Resumes an earlier run; returns its last step, or None if the store no longer has the run."""
        try:
            before = self.client.get_run(str(run))
        except Exception as error:
            if getattr(error, "error_code", "") != MISSING:
                raise
            return None
        self.id, self.experiment = before.info.run_id, before.info.experiment_id
        self.client.update_run(self.id, "RUNNING")
        logged = self.client.get_metric_history(self.id, "train_loss") if "train_loss" in before.data.metrics else []
        return max((one.step for one in logged), default=0)

    def _create(self, experiment: str, name: str, config: ConfigDict) -> None:
        there = self.client.get_experiment_by_name(experiment)
        self.experiment = there.experiment_id if there is not None else self.client.create_experiment(experiment)
        self.id, self.last = self.client.create_run(self.experiment, run_name=name).info.run_id, 0
        values = [
            self.entities.Param(key, str(value)[:LONGEST]) for key, value in hyperparameters(config).items()
        ]  # fmt: skip
        for start in range(0, len(values), PARAMETERS):
            self.client.log_batch(self.id, params=values[start : start + PARAMETERS])

    def write(self, line: Mapping[str, Any]) -> None:
        """Logs every number of the line at its step; steps logged before the resume are not repeated."""
        step = line["step"]
        if step <= (self.last or 0):
            return
        now = int(time.time() * 1000)
        numbers = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
        with _quiet():
            metrics = [self.entities.Metric(name, float(value), now, step) for name, value in numbers.items()]
            self.client.log_batch(self.id, metrics=metrics)

    def close(self, status: str) -> None:
        """Ends the run with its status; one that was preempted is KILLED, until it is resumed."""
        with _quiet():
            self.client.set_tag(self.id, "status", status)
            self.client.set_terminated(self.id, STATUSES.get(status, "FAILED"))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps warnings of MLflow's dependencies out of a run's output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lets one process of this user at a time create tables or an experiment: MLflow does not serialize that."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "mlflow.lock", timeout=120):
        yield


def _without_password(text: str) -> str:
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", text)
