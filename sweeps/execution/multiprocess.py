"""One run trained by several processes: each of them has `train.py` do it in a process of its own, and waits.

A process that has joined others (`jax.distributed`) can do nothing alone any more, and holds its devices. So what an
engine starts stays outside: the first of them evaluates when training is over, and devices are free by then.
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
KNOWN = (0, 3, 4)  # exit codes of train.py after which run.json tells how the run stands


def train(config: ConfigDict, workdir: str, env: Mapping[str, str] | None = None) -> None:
    """Has `train.py` train beside the processes that the environment tells it of; run.json says how it went.

    Being told to stop (by SIGTERM, or Ray's SIGINT) is passed on once, as SIGINT: an engine that signals all processes
    has sent SIGTERM to train.py already, and of a second one of a kind it would die.

    Raises:
        UserError: it refused, or could not go on; its line is in the log.
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
        # Slurm's notice of a time limit goes to every process; train.py would die of it.
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
    """Does the part of a process that is not the first: training alone, as long as there is some to do."""
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
