"""Processes that prepare batches, watched: one that dies or hangs is replaced, and not a batch is lost or changed.

Batch n is the same whoever prepares it, so that starting anew after the last batch taken goes on exactly.
"""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from configs.errors import UserError

PATIENCE = 300.0  # seconds without a batch after which workers count as hanging; starting them takes some
ATTEMPTS = 3  # times in a row that workers are started without giving a batch
DIED = "Worker process was terminated unexpectedly"  # how Grain tells it
NAME = "grain-process-prefetch"  # how Grain names the processes


class Watched:
    """Batches of `make()`, an iterator over worker processes, which is made anew where they die or hang.

    Args:
        make: returns the iterator from the next batch on.
        say: is told what happened.

    Raises:
        UserError: from `next`, where starting anew does not help.
    """

    def __init__(self, make: Callable[[], Any], say: Callable[[str], None]) -> None:
        self._make, self._say = make, say
        self._iterator = make()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for _ in range(ATTEMPTS):
            batch, wrong = self._next()
            if not wrong:
                return batch
            self._say(f"a data worker {wrong}: restarting the workers")
            _kill()
            self._iterator.close()
            self._iterator = self._make()
        raise UserError(f"data.workers: a worker {wrong}, {ATTEMPTS} times in a row (data.workers = 0 needs none)")

    def _next(self) -> tuple[Any, str]:
        """Returns (batch, "") or (None, what went wrong); the waiting is a thread's, which can be left behind."""
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        iterator = self._iterator

        def wait() -> None:
            try:
                answer.put((next(iterator), None))
            except BaseException as error:
                answer.put((None, error))

        threading.Thread(target=wait, daemon=True).start()
        try:
            batch, error = answer.get(timeout=PATIENCE)
        except queue.Empty:
            return None, f"gave no batch for {PATIENCE:.0f} s"
        if error is None:
            return batch, ""
        if isinstance(error, RuntimeError) and DIED in str(error):
            return None, f"died ({str(error).removeprefix(DIED).split('.')[0].strip().removeprefix('with ')})"
        raise error

    def close(self) -> None:
        """Ends the workers."""
        self._iterator.close()


def end_with_parent(worker: int, of: int) -> None:
    """Runs in a worker: ends it when the process that it prepares batches for is gone, killed without a word.

    It would else wait forever for somebody to take its batches, and hold its memory.
    """
    del worker, of
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _kill() -> None:
    """Ends this process's workers at once: a hanging one would not hear anything else."""
    for process in multiprocessing.active_children():
        if process.name.startswith(NAME):
            process.kill()
            process.join()
