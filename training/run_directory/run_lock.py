"""Locking a run directory: one process at a time, stopped by signals, and only while the folder exists."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from configs import interrupt
from configs.errors import UserError
from training.run_directory.files import read_json
from training.runtime import failures

LOCK = ".lock"
SETTLED, LONGEST, PAUSE = 1.0, 10.0, 0.05  # seconds, of `Place.clear`


@contextmanager
def exclusive(workdir: Path) -> Iterator[None]:
    """Locks a run directory for this process; the lock ends with the process, however it ends.

    Raises:
        UserError: another process has it, or it is a sweep.
    """
    if (workdir / "sweep.json").exists():
        raise UserError(f"{workdir}: has a sweep (sweep.json), not a run; use another directory")
    lock = filelock.FileLock(workdir / LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"{workdir}: another process is training there") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of ending; a second one of the same kind ends the process.

    Includes one that came before, and whose KeyboardInterrupt was dropped.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def catch(number: int, _: Any) -> None:
        if number in caught:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        caught.append(number)

    before = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT)}
    caught += interrupt.answered()[:1]
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Vanished(UserError):
    """The run directory is no longer the one that training started in."""


class Place:
    """A run directory as it was when training started in it: file system and inode of the held lock."""

    def __init__(self, workdir: Path) -> None:
        self.file = workdir / LOCK
        self.known = self._now()

    def _now(self) -> tuple[int, int] | None:
        try:
            result = self.file.stat()
        except OSError:
            return None
        return result.st_dev, result.st_ino

    def clear(self) -> None:
        """Removes what a checkpoint being written created in place of a directory that has vanished, and this process's
        run.json in it.

        If one part of a checkpoint fails, Orbax reports that at once and leaves the other parts' writing to its
        threads, which create every missing folder: that is over when nothing has reappeared for `SETTLED` seconds.
        """
        until = time.monotonic() + LONGEST
        quiet = 0.0
        while self.known is not None and self._now() is None and quiet < SETTLED and time.monotonic() < until:
            quiet = 0.0 if self._taken_away() else quiet + PAUSE
            time.sleep(PAUSE)

    def _taken_away(self) -> bool:
        result = False
        with suppress(OSError, UserError, LookupError, TypeError):
            # Inside the folder that a checkpoint created there was one to write run.json into.
            record = self.file.parent / "run.json"
            if read_json(record)["pid"] == os.getpid():
                record.unlink()
                result = True
        for folder in self.file.parent.glob("checkpoints/*.orbax-checkpoint-tmp"):
            result = True
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.file.parent / "checkpoints", self.file.parent):
            with suppress(OSError):  # it is missing, or has something else
                folder.rmdir()
                result = True
        return result

    def gone(self) -> str:
        """Returns a message if it was removed, moved or unmounted; empty if it is still there."""
        if self.known is None or self._now() == self.known:
            return ""
        message = "vanished while training in it (removed, moved or unmounted); nothing more is written; restore it"
        return f"{self.file.parent}: {message}, {failures.AGAIN}"

    def failure(self, error: BaseException) -> str | None:
        """Returns in one line why training here failed, or None if the error itself is the best explanation."""
        known = str(error) if isinstance(error, UserError) else failures.explained(error, self.file.parent)
        return self.gone() or known

    def check(self) -> None:
        """Checks that it still exists, because the next write would create the folder again.

        Raises:
            Vanished: it does not.
        """
        if message := self.gone():
            raise Vanished(message)
