"""Worker processes that prepare batches: one that dies or hangs is replaced, without losing or changing a batch.

Batch n does not depend on the worker, so restarting after the last batch taken continues exactly.
"""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from configs.errors import UserError

PATIENCE = 300.0  # seconds without a batch after which workers count as hanging; starting them takes a while
ATTEMPTS = 3  # consecutive restarts without a batch before an error
DIED = "Worker process was terminated unexpectedly"  # Grain's message
NAME = "grain-process-prefetch"  # Grain's name of the processes


class Watched:
    """Batches of `make()`, an iterator over worker processes, which is made again if they die or hang.

    Args:
        make: returns the iterator from the next batch on.
        say: called with a message about what happened.

    Raises:
        UserError: from `next`, if restarting does not help.
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
        """Returns (batch, "") or (None, what went wrong); a thread waits, which can be abandoned."""
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
            return None, f"produced no batch for {PATIENCE:.0f} s"
        if error is None:
            return batch, ""
        if isinstance(error, RuntimeError) and DIED in str(error):
            return None, f"died ({str(error).removeprefix(DIED).split('.')[0].strip().removeprefix('with ')})"
        raise error

    def close(self) -> None:
        """Stops the workers."""
        self._iterator.close()


def end_with_parent(worker: int, of: int) -> None:
    """Runs in a worker: ends it when its parent process is gone, for example killed.

    Otherwise it would wait forever for its batches to be taken, and keep its memory.
    """
    del worker, of
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _kill() -> None:
    """Kills this process's workers: a hanging one would not respond to anything else."""
    for process in multiprocessing.active_children():
        if process.name.startswith(NAME):
            process.kill()
            process.join()
