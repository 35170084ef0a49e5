"""Ctrl-C that is not lost: Python drops a KeyboardInterrupt in a callback of the garbage collector, and so do imports
that catch everything. It is raised again until it has been answered. No JAX."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 1.0  # seconds after which a signal that nobody has answered is sent again

_asked: list[int] = []  # signals that came and have not been answered
_insisting = threading.Event()  # the signal that comes now is one sent again
_lock = threading.Lock()


def handler(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; for `signal.signal`."""
    again = _insisting.is_set()
    _insisting.clear()
    if again and (not _asked or _answering()):
        return
    _asked.append(number)
    if len(_asked) == 1:
        threading.Thread(target=_insist, name="interrupt", daemon=True).start()
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")


def _answering() -> bool:
    """Tells whether this thread is in an `except` or `finally` of a KeyboardInterrupt."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _insist() -> None:
    while True:
        time.sleep(AGAIN)
        with _lock:
            if not _asked:
                return
            number = _asked[0]
            if signal.getsignal(number) is handler:  # else somebody else takes such signals now
                _insisting.set()
                os.kill(os.getpid(), number)


def pending() -> list[int]:
    """Returns the signals that came and have not been answered."""
    return list(_asked)


def answered() -> list[int]:
    """Records that the receiver has the signal, so that it is not sent again. Returns the signals that came."""
    with _lock:
        came = list(_asked)
        _asked.clear()
        _insisting.clear()
    return came


@contextmanager
def raising(*numbers: int) -> Iterator[None]:
    """Has signals raise KeyboardInterrupt for a block, in the main thread; what came in it counts as answered."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        answered()
