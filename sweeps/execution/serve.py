"""The loop of a worker process: one job after the other, until the launcher closes the connection or is gone.

This module imports no JAX: the environment that divides cores and devices must be set before JAX starts.
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
    """Takes jobs from the connection until it closes. The entry of a worker process."""
    os.environ.update(place.env)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in the terminal reaches the launcher alone, which then tells the workers
    # Whatever was inherited: a shell has what it puts into the background ignore SIGINT.
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
    """Ends this process when the launcher is gone, giving the run the time to be saved."""
    while os.getppid() == parent:
        time.sleep(1.0)
    # The launcher may have sent SIGTERM before it died, and a second one would not be waited for.
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(1)


def logged(job: Job, otherwise: Path) -> Outcome:
    """Does a job, its output in the run's log.txt; what is printed afterwards goes to `otherwise`."""
    redirect(job.workdir / "log.txt")
    try:
        if job.companions:
            return packs.work(job)
        return worker.work(job)
    finally:
        gc.collect()
        redirect(otherwise)
