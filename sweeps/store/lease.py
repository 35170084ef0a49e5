"""Exclusive access to a file: an operating-system lock, and a lease for file systems that do not share locks.

The lock ends with its process, however that ends, but some network file systems keep locks to one host. So there is
also a lease: a small file that its holder touches every few seconds. Another host takes over only after it has seen it
untouched for `LEASE` seconds, by its own clock; on the holder's host it is free as soon as the process is gone.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

LEASE = 45.0  # seconds without a touch after which another host may take over
BEATS = 4  # touches in that time


class Held(Exception):
    """Another process holds it."""


@contextlib.contextmanager
def hold(path: Path, timeout: float = 0.0) -> Iterator[None]:
    """Holds `path` (a file that need not exist, in an existing folder) until the block ends.

    If another host left a lease behind, this takes up to LEASE seconds more than `timeout`. A holder that loses its
    lease (it was suspended for longer, or cut off from the files) is sent SIGTERM, so that it saves and ends.

    Raises:
        Held: another process had it all the time.
    """
    lease = filelock.SoftFileLease(
        path.with_name(f"{path.name}.lease"),
        lease_duration=LEASE,
        heartbeat_interval=LEASE / BEATS,
        on_compromise=_lost,
        poll_interval=0.2,
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(filelock.FileLock(path).acquire(timeout=timeout))
            stack.enter_context(lease.acquire(timeout=timeout + LEASE * 1.5))
        except filelock.Timeout:
            raise Held(str(path)) from None
        yield


def _lost(compromise: Any) -> None:
    print(f"the lease {compromise.lock_file} was lost ({compromise.reason}): ending", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
