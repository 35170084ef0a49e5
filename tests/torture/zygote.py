"""A process that has everything imported and forks a child for each call, so that a start takes no seconds.

It reads one JSON object a line ({"call": "function of children.py", "arguments": {...}, "log": FILE, "env": {...}}),
answers with the child's process id, and tells every child's end. JAX is imported here but not started; each child does
that.
"""

import importlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

IMPORTS = "jax flax optax grain orbax.checkpoint tensorflow_datasets".split()
CHILDREN = f"{__package__}.children"
IMPORTS += ["training.loop.trainer", "eval.run", CHILDREN]


def main() -> None:
    """Serves until its input ends."""
    for name in IMPORTS:
        importlib.import_module(name)
    _tell({"ready": True})
    left = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.005)
        if ready:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, left = (left + read).split(b"\n")
            for line in lines:
                _tell({"pid": _fork(json.loads(line))})
        _reap()


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.environ.update(request["env"])
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        code = getattr(importlib.import_module(CHILDREN), request["call"])(**request["arguments"]) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return 0


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


class Child:
    """A process that was forked: its id, and how it ended."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log = pid, log
        self.over = threading.Event()
        self.code: int | None = None

    def wait(self, seconds: float) -> bool:
        """Waits so long at most; tells whether it has ended."""
        return self.over.wait(seconds)

    def until(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Waits until a condition holds, looking often; False where the process ended first, or the time did."""
        end = time.monotonic() + seconds
        while not self.over.is_set() and time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.002)
        return False

    def signal(self, number: int) -> bool:
        """Sends a signal; tells whether there was anybody to get it."""
        if self.over.is_set():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def said(self) -> str:
        """Returns what it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


class Zygote:
    """The other side: starts the process, asks it for children."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"{__package__}.zygote"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        self.children: dict[int, Child] = {}
        self.ended: dict[int, int] = {}
        self.born: list[int] = []
        self.changed = threading.Condition()
        self.asking = threading.Lock()
        assert self.process.stdout is not None
        self.process.stdout.readline()  # ready
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self._hear(said)

    def _hear(self, said: IO[bytes]) -> None:
        for line in said:
            message = json.loads(line)
            with self.changed:
                if "pid" in message:
                    self.born.append(message["pid"])
                elif message["ended"] in self.children:
                    self._end(message["ended"], message["code"])
                else:
                    self.ended[message["ended"]] = message["code"]
                self.changed.notify_all()

    def _end(self, pid: int, code: int) -> None:
        child = self.children.pop(pid)
        child.code = code
        child.over.set()

    def start(self, call: str, log: Path, env: dict[str, str] | None = None, **arguments: Any) -> Child:
        """Starts `call` (a function of children.py) with JSON-able arguments in a child whose output goes to `log`."""
        request = {"call": call, "arguments": arguments, "log": str(log), "env": env or {}}
        assert self.process.stdin is not None
        with self.asking:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            with self.changed:
                if not self.changed.wait_for(lambda: self.born, timeout=120):
                    raise RuntimeError("the process that forks gives no answer")
                child = Child(self.born.pop(), log)
                self.children[child.pid] = child
                if child.pid in self.ended:
                    self._end(child.pid, self.ended.pop(child.pid))
        return child

    def close(self) -> None:
        """Ends it and whatever it started."""
        for child in list(self.children.values()):
            child.signal(9)
        time.sleep(0.1)
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.listener.join(10.0)


if __name__ == "__main__":
    main()
