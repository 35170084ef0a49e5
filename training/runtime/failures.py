"""One-line explanations of failing disks, folders and devices while a run trains, with advice."""

import errno
import os
import re
from pathlib import Path

import jax

AGAIN = "run the same command again to resume from the newest checkpoint"
# TensorStore raises none of Python's file errors; these are its messages for the system's.
STORE = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Permission denied": errno.EACCES,
    "Input/output error": errno.EIO,
    "Stale file handle": errno.ESTALE,
}
ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
}
# Names in the errors of XLA and JAX about communication between processes.
BETWEEN = re.compile("Gloo|NCCL|coordination service|heartbeat", re.IGNORECASE)
# Errors that waiting does not fix: another file is in the way, or the name is invalid.
ELSEWHERE = {errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}


def explained(error: BaseException, workdir: Path) -> str | None:
    """Returns a failure of the disk, of a device or of another process in one line, or None if it is none of them."""
    seen: BaseException | None = error
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else _of_store(seen)
        if number:
            where = seen.filename if isinstance(seen, OSError) and seen.filename else workdir
            if number in ELSEWHERE:
                return f"{where}: {os.strerror(number)}; use another directory"
            advice = ADVICE.get(number, "check the disk")
            return f"{where}: {os.strerror(number)}; {advice}, {AGAIN}"
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, TimeoutError):
        message = " ".join(str(error).split())[:300]
        return f"writing a checkpoint took too long ({message}); the clock may have been set forward; {AGAIN}"
    if isinstance(error, jax.errors.JaxRuntimeError | ValueError) and BETWEEN.search(str(error)):
        message = " ".join(str(error).split())[:300]
        return lost(message)
    if isinstance(error, jax.errors.JaxRuntimeError):
        message = " ".join(str(error).split())[:300]
        if message.startswith("RESOURCE_EXHAUSTED"):
            return f"the device has too little memory: {message}; see data.micro_batches and model.remat"
        return f"the device failed: {message}; {AGAIN}"
    return None


def lost(message: str) -> str:
    """Returns the message for processes of a run that lost one another."""
    return f"the processes of this run lost one another ({message}); one of them may have died; {AGAIN}"


def named(error: BaseException) -> str:
    """Returns an error's type and the first line of its text, for errors without a better explanation."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _of_store(error: BaseException) -> int | None:
    text = str(error)
    return next((number for words, number in STORE.items() if words in text), None)
