"""The peers' processes, and their turns."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.speed.cases import Case

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = "ablax"


class PeerError(Exception):
    """A peer's process ended."""


class Peer:
    """One peer, in a separate process that waits for jobs (see `serving.serve`)."""

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True
        )
        self.about = self._answer()

    def ask(self, **job: Any) -> dict[str, Any]:
        """Sends a job and returns its answer.

        Raises:
            PeerError: the process ended, with the last line of its output.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.said.seek(0)
            said = self.said.read().strip().splitlines() or ["nothing"]
            raise PeerError(f"{self.name} ended and said: {said[-1]}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()


@contextmanager
def started(commands: dict[str, Sequence[str | Path]]) -> Iterator[dict[str, Peer]]:
    """Starts the peers; ends them on exit."""
    with ExitStack() as stack:
        peers = {}
        for name, command in commands.items():
            peers[name] = Peer(name, command)
            stack.callback(peers[name].close)
        yield peers


def commands(
    torch_python: Path, threads: int, *, compiled: bool, maxtext: Path | None = None
) -> dict[str, Sequence[str | Path]]:
    """Returns the command line of each peer.

    Args:
        torch_python: has PyTorch and transformers.
        threads: of each peer.
        compiled: adds transformers under torch.compile.
        maxtext: has MaxText, and adds it.
    """
    llama: list[str | Path] = [torch_python, "-m", "bench.speed.hf_llama", str(threads)]
    results: dict[str, Sequence[str | Path]] = {
        OURS: [sys.executable, "-m", "bench.speed.ours", str(threads)],
        "transformers": llama,
        "jax": [sys.executable, "-m", "bench.speed.plain_jax", str(threads)],
    }
    if compiled:
        results["torch.compile"] = [*llama, "compile"]
    if maxtext is not None:
        results["maxtext"] = [maxtext, "-m", "bench.speed.maxtext", str(threads)]
    return results


def measure(case: Case, peers: Sequence[Peer], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns each peer's times of one unit of work; peers take turns (A B C A B C ...), one median per turn.

    Args:
        case: the work.
        peers: to be measured.
        rounds: turns of each.
        seconds: minimum duration of a turn.
    """
    for peer in peers:
        peer.ask(case=dataclasses.asdict(case))
    results: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            time.sleep(0.05)  # until the previous peer's threads have gone to sleep
            times = sorted(peer.ask(seconds=seconds)["seconds"])
            results[peer.name].append(times[len(times) // 2])
    return results
