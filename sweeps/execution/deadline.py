"""A job's time limit, and SIGTERM handling: stop at the current point, and save."""

import os
import signal
import threading
import time
from types import TracebackType
from typing import Any

from configs import interrupt

SAVING = 120.0  # seconds that a run has to save itself before its process is killed

EXIT = 75  # EX_TEMPFAIL


class Deadline:
    """Turns SIGTERM into KeyboardInterrupt for a block, and sends this process a SIGTERM after `seconds`.

    A trainer that catches SIGTERM itself saves and returns; anything else is interrupted by the exception. Outside the
    main thread, which alone receives signals, the block has its time limit but no handler.

    Args:
        seconds: None: no limit.
        saving: a process that does not respond is killed after this many further seconds, with exit code EXIT.
    """

    def __init__(self, seconds: float | None, saving: float = SAVING) -> None:
        self.seconds, self.saving = seconds, saving
        self.passed = False
        self.over = threading.Event()
        self.lock = threading.Lock()  # prevents a signal after the block has ended
        self.before: Any = None
        self.main = threading.current_thread() is threading.main_thread()

    @property
    def message(self) -> str:
        """The message recorded in the run's files."""
        return f"timed out: not finished after {self.seconds:g} s (--run-timeout)"

    def __enter__(self) -> "Deadline":
        if self.main:
            self.before = signal.signal(signal.SIGTERM, interrupt.handler)
        if self.seconds is not None:
            threading.Thread(target=self._watch, args=(self.seconds,), name="deadline", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.over.set()
        if self.main:
            interrupt.answered()
            signal.signal(signal.SIGTERM, self.before if self.before is not None else signal.SIG_DFL)

    def _watch(self, seconds: float) -> None:
        # In slices: a single long sleep wakes late on a machine that was suspended.
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.over.wait(min(left, 60.0)):
                return
        with self.lock:
            if self.over.is_set():
                return
            self.passed = True
            print(self.message, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        if not self.over.wait(self.saving):
            print(f"not saved within {self.saving:g} s: ended", flush=True)
            os._exit(EXIT)
