"""Puts faults into real runs for a given time and counts what becomes of them.

    make torture MINUTES=30 [SEED=0]

Every round draws a kind of fault and its moments by the seed, lets the run go on, and compares its metrics and
parameters, bit by bit, with those of a run that nothing happened to. Exit code 1: a result was lost or a trace differs.
"""

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from configs import cli
from configs.errors import UserError, nearest
from tests.torture import disks, kills, others, sweeps
from tests.torture.scene import Found, Scene, can_mount

Kind = Callable[[Scene, Random, int], Found]
# How often each is drawn, and what it does.
KINDS: dict[str, tuple[int, Kind]] = {
    "SIGKILL while training": (4, kills.training),
    "SIGKILL while a checkpoint is written": (4, kills.checkpoint_writing),
    "SIGKILL while data are built": (2, kills.data_building),
    "SIGKILL while evaluating": (2, kills.evaluation),
    "SIGKILL while a report is written": (2, kills.report_writing),
    "SIGTERM with a short grace": (3, kills.sigterm),
    "disk full": (3, disks.full),
    "disk read-only": (1, disks.read_only),
    "run directory moved away": (2, disks.vanished),
    "file system unmounted": (1, disks.unmounted),
    "checkpoint cut, missing or with a bit turned": (4, disks.checkpoint),
    "corpus or tokens cut, missing or with a bit turned": (2, disks.corpus),
    "second process": (2, others.second_process),
    "data worker killed": (1, others.data_worker_killed),
    "data worker hangs": (1, others.data_worker_hangs),
    "device lost": (2, others.device_lost),
    "clock jumps": (2, others.clock),
    "sweep's worker or launcher killed": (1, sweeps.worker_killed),
    "evaluation of another step in the way": (1, sweeps.stale_evaluation),
    "corpus changes while a sweep runs": (2, sweeps.corpus_changes),
}


class Tally:
    """What was found, by kind."""

    def __init__(self, kinds: list[str]) -> None:
        self.rounds = dict.fromkeys(kinds, 0)
        self.found = {kind: Found() for kind in kinds}
        self.cannot: dict[str, str] = {}
        self.lock = threading.Lock()

    def add(self, kind: str, one: Found) -> None:
        """Adds a round's counts."""
        with self.lock:
            self.rounds[kind] += 1
            whole = self.found[kind]
            for name in ("injected", "resumed", "lost", "differing"):
                setattr(whole, name, getattr(whole, name) + getattr(one, name))
            whole.notes += one.notes

    @property
    def bad(self) -> int:
        """Results lost and traces that differ."""
        return sum(one.lost + one.differing for one in self.found.values())

    def table(self) -> str:
        """Returns the counts as a Markdown table."""
        lines = [
            "| fault | rounds | injected | resumed | results lost | traces that differ |",
            "|---|---|---|---|---|---|",
        ]
        columns = ("injected", "resumed", "lost", "differing")
        for kind, one in self.found.items():
            counts = [self.rounds[kind], *(getattr(one, name) for name in columns)]
            lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
        sums = [sum(getattr(one, name) for one in self.found.values()) for name in columns]
        lines.append(f"| all | {' | '.join(map(str, [sum(self.rounds.values()), *sums]))} |")
        lines += [f"{kind}: left out, {why}" for kind, why in self.cannot.items()]
        return "\n".join(lines)


def schedule(seed: int, kinds: list[str]) -> Iterator[tuple[int, str, Random]]:
    """Yields (round, kind, its own random numbers) without end; kinds come in a shuffled order, each at its rate."""
    numbers = itertools.count()
    for turn in itertools.count():
        bag = [kind for kind in kinds for _ in range(KINDS[kind][0])]
        Random(f"{seed} {turn}").shuffle(bag)
        for kind in bag:
            number = next(numbers)
            yield number, kind, Random(f"{seed} {turn} {number}")


def torture(folder: Path, seconds: float, seed: int, kinds: list[str], parallel: int) -> Tally:
    """Puts in faults until the time is over, and returns the counts."""
    tally, scene = Tally(kinds), Scene(folder)
    end, drawn, lock = time.monotonic() + seconds, schedule(seed, kinds), threading.Lock()

    def work() -> None:
        while time.monotonic() < end and len(tally.cannot) < len(kinds):
            with lock:
                number, kind, draw = next(drawn)
            if kind not in tally.cannot:
                _round(scene, tally, number, kind, draw)

    try:
        with ThreadPoolExecutor(parallel) as pool:
            for future in [pool.submit(work) for _ in range(parallel)]:
                future.result()
    finally:
        scene.close()
    return tally


def _round(scene: Scene, tally: Tally, number: int, kind: str, draw: Random) -> None:
    begun = time.monotonic()
    try:
        result = KINDS[kind][1](scene, draw, number)
    except disks.Cannot as error:
        tally.cannot[kind] = str(error)
        return
    except Exception as error:
        result = Found()
        result.wrong(f"the torture itself failed: {type(error).__name__}: {error}", lost=1)
    tally.add(kind, result)
    well = not (result.lost or result.differing)
    message = f"{result.injected} injected" if well else f"LOST {result.lost}, DIFFERING {result.differing}"
    print(f"{number:4d}  {kind}: {message}  ({time.monotonic() - begun:.0f} s)", flush=True)
    for note in result.notes:
        print(f"      {note}", flush=True)
    if well:
        shutil.rmtree(scene.folder / "rounds" / str(number), ignore_errors=True)


def main(argv: list[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults are put in (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="draws kinds and moments (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=2, help="rounds at once (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="WORDS", help="kinds that contain these words; repeatable")
    parser.add_argument("--dir", type=Path, help="where everything lies, kept; default: a temporary folder")
    args = parser.parse_args(argv)
    if args.minutes <= 0 or args.parallel < 1:
        raise UserError("--minutes must be above 0, --parallel 1 or more")
    kinds = [kind for kind in KINDS if not args.only or any(words in kind for words in args.only)]
    if not kinds:
        raise UserError(f"--only={args.only[0]}: no kind of fault contains it{nearest(args.only[0], list(KINDS))}")
    folder = args.dir or Path(tempfile.mkdtemp(prefix="ablax-torture-"))
    if any(folder.glob("*")):
        raise UserError(f"--dir={folder}: is not empty")
    if not can_mount():
        print("not root: file systems are not mounted, and the faults that need it are left out", flush=True)
    tally = torture(folder.absolute(), args.minutes * 60, args.seed, kinds, args.parallel)
    print(tally.table())
    if tally.bad:
        print(f"what went wrong lies in {folder}")
    elif not args.dir:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if tally.bad else 0


if __name__ == "__main__":
    cli.main(main)
