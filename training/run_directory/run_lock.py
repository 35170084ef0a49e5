"""Holding a run directory: one process at a time, told to stop by signals, and only while the folder is still there."""

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
    """Holds a run directory for this process; the lock goes with the process, however it ends.

    Raises:
        UserError: another process holds it, or it holds a sweep.
    """
    if (workdir / "sweep.json").exists():
        raise UserError(f"{workdir}: holds a sweep (sweep.json), not a run; choose another directory")
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
    """Collects SIGTERM and SIGINT instead of dying of them; a second one of the same kind is not waited for.

    One that came before, and whose KeyboardInterrupt was dropped, is among them.
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
    """The run directory is no longer the one that training began in."""


class Place:
    """A run directory as it was when training began in it: the file system and number of the lock that is held."""

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
        """Takes away what a checkpoint that was being written made in the place of a directory that has vanished.

        And a run.json of this process's in it.
        Where one part of a checkpoint fails, Orbax tells so at once and leaves the other parts' writing to its threads,
        which make every folder that they miss: it is over when nothing has come again for `SETTLED` seconds.
        """
        until = time.monotonic() + LONGEST
        quiet = 0.0
        while self.known is not None and self._now() is None and quiet < SETTLED and time.monotonic() < until:
            quiet = 0.0 if self._taken_away() else quiet + PAUSE
            time.sleep(PAUSE)

    def _taken_away(self) -> bool:
        result = False
        with suppress(OSError, UserError, LookupError, TypeError):
            # In the folder that a checkpoint made there was one to write run.json into.
            record = self.file.parent / "run.json"
            if read_json(record)["pid"] == os.getpid():
                record.unlink()
                result = True
        for folder in self.file.parent.glob("checkpoints/*.orbax-checkpoint-tmp"):
            result = True
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (self.file.parent / "checkpoints", self.file.parent):
            with suppress(OSError):  # it is not there, or holds something else
                folder.rmdir()
                result = True
        return result

    def gone(self) -> str:
        """Returns what to say where it was removed, moved or unmounted; empty where it is still there."""
        if self.known is None or self._now() == self.known:
            return ""
        message = "vanished while training in it (removed, moved or unmounted); nothing more is written; bring it back"
        return f"{self.file.parent}: {message}, {failures.AGAIN}"

    def failure(self, error: BaseException) -> str | None:
        """Returns in a line why training here failed, or None where nothing better is known than the error itself."""
        known = str(error) if isinstance(error, UserError) else failures.explained(error, self.file.parent)
        return self.gone() or known

    def check(self) -> None:
        """Makes sure that it is still there, since whatever writes next would make the folder anew.

        Raises:
            Vanished: it is not.
        """
        if message := self.gone():
            raise Vanished(message)
