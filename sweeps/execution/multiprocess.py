"""One run trained by several processes: each starts `train.py` as a subprocess, and waits.

A process that has joined others (`jax.distributed`) can no longer work alone, and holds its devices. So the launcher's
own process stays outside: the first of them evaluates when training has finished and the devices are free.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ml_collections import ConfigDict

from configs import cli, fields
from configs.errors import UserError
from sweeps.execution.worker import Job, Outcome, budget_amount
from sweeps.store import run_status
from training.run_directory.files import write_json
from training.runtime import process as processes

TRAIN = "sweeps.execution.multiprocess:train"
KNOWN = (0, 3, 4)  # exit codes of train.py after which run.json has the run's state


def train(config: ConfigDict, workdir: str, env: Mapping[str, str] | None = None) -> None:
    """Runs `train.py` together with the other processes named by the environment; run.json has the result.

    A request to stop (SIGTERM, or Ray's SIGINT) is passed on once, as SIGINT: a cluster that signals all processes has
    already sent SIGTERM to train.py, and a second signal of the same kind would kill it.

    Raises:
        UserError: it refused the run, or could not continue; its message is in the log.
        RuntimeError: it died.
        KeyboardInterrupt: it was stopped before it could save anything.
    """
    stops: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        write_json(file.name, fields.to_dict(config))
        command = [sys.executable, str(cli.CHECKOUT / "train.py"), f"--config={file.name}", f"--workdir={workdir}"]
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        # Slurm's notice of a time limit goes to every process, and would kill train.py.
        quiet = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        child = subprocess.Popen(command, env={**os.environ, **(env or {})})
        signal.signal(signal.SIGUSR2, quiet)
        try:
            code, message = None, False
            while code is None:
                try:
                    code = child.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    if stops and not message:
                        child.send_signal(signal.SIGINT)
                        message = True
        finally:
            child.kill()
            child.wait()
            for number, handler in before.items():
                signal.signal(number, handler)
    if code in KNOWN:
        return
    if stops:
        raise KeyboardInterrupt("stopped")
    if code == 2:
        raise UserError("train.py refused the run or could not resume it; see log.txt")
    raise RuntimeError(f"train.py, one of several processes, {processes.ended(code)}")


def follow(job: Job, env: Mapping[str, str] | None = None) -> Outcome:
    """The part of every process but the first: trains only, as long as there is work."""
    status: Any = run_status.read(job.workdir, amount=budget_amount(job)).status
    if status in run_status.FINISHED:
        return Outcome(status)
    Path(job.workdir).mkdir(parents=True, exist_ok=True)
    try:
        train(fields.from_dict(job.config), str(job.workdir), env)
    except (UserError, RuntimeError) as error:
        return Outcome("failed", str(error))
    except KeyboardInterrupt:
        return Outcome("preempted", "stopped")
    return Outcome("done")
