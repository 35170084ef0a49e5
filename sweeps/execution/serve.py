"""The loop of a worker process: runs jobs until the launcher closes the connection or dies.

This module imports no JAX: the environment that assigns cores and devices must be set before JAX starts.
"""

import gc
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from configs import interrupt
from sweeps.execution import packs, worker
from sweeps.execution.worker import PATIENCE, Job, Outcome, Place, redirect


def serve(connection: Connection, place: Place, parent: int) -> None:
    """Takes jobs from the connection until it closes. The entry point of a worker process."""
    os.environ.update(place.env)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in the terminal then reaches only the launcher, which stops the workers
    # Overrides inherited handlers: a shell makes background processes ignore SIGINT.
    signal.signal(signal.SIGINT, interrupt.handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    redirect(Path(place.log))
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        outcome = logged(job, Path(place.log))
        try:
            connection.send(outcome)
        except OSError:
            return


def _follow(parent: int) -> None:
    """Ends this process when the launcher has died, giving the run time to save."""
    while os.getppid() == parent:
        time.sleep(1.0)
    # The launcher may have sent SIGTERM before it died; a second one would kill.
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(1)


def logged(job: Job, otherwise: Path) -> Outcome:
    """Does a job with its output in the run's log.txt; later output goes to `otherwise`."""
    redirect(job.workdir / "log.txt")
    try:
        if job.companions:
            return packs.work(job)
        return worker.work(job)
    finally:
        gc.collect()
        redirect(otherwise)
