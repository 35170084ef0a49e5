"""python -m sweeps.status DIR: one line per run of a sweep: status, step, loss, time left, errors; then the counts.

It reads the runs' own files, and queries Slurm about runs that are there. A failed run's last lines follow (--log). It
works beside a launcher, on another machine, and without JAX. --watch repeats until nothing is left to do or Ctrl-C.
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m sweeps.status")

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from configs import cli
from configs.documents import ordinary
from configs.errors import UserError
from configs.terminal import plain
from sweeps.display import aligned, row, summary, table
from sweeps.launchers import registry
from sweeps.spec import looks
from sweeps.store import state
from sweeps.store.run_status import RunState

LINES = 5  # of the log of a failed run
BYTES = 16384  # bytes at the end of a log in which its last lines are searched


def main(argv: list[str]) -> int:
    """The command."""
    parser = cli.parser(__doc__ or "")
    parser.add_argument("directory", metavar="DIR", help="the sweep's directory (--out of sweeps.launch)")
    parser.add_argument("--watch", nargs="?", const="2", metavar="SECONDS", help="repeat every SECONDS (2)")
    parser.add_argument(
        "--log", type=int, default=LINES, metavar="N", help="last lines of a failed run's log (%(default)s)"
    )
    args = parser.parse_args(argv)
    directory = Path(args.directory)
    if args.log < 0:
        raise UserError(f"--log={args.log}: must be 0 or more")
    if args.watch is None:
        show(directory, args.log)
        return 0
    try:
        every = float(args.watch)
    except ValueError:
        every = 0.0
    if every <= 0:
        raise UserError(f"--watch={args.watch}: must be a number of seconds above 0")
    watch(directory, every, args.log)
    return 0


def run_states(directory: Path) -> tuple[dict[str, RunState], str]:
    """Returns the state of every run from its files and its cluster; and a message if that does not answer."""
    return registry.overlay(directory, state.run_states(directory))


def show(directory: Path, log: int) -> None:
    """Prints it once."""
    board, silence = run_states(directory)
    if sys.stdout.isatty():
        Console().print(table(board, {}))
    else:
        print("\n".join(aligned([row(key, run) for key, run in board.items()])))
        print(f"\n{summary(board)}")
    for line in plans(directory):
        print(line)
    extra = state.unknown_runs(directory, list(board))
    if extra:
        print(f"no longer in the sweep file: {plain(', '.join(extra))}")
    for line in ([silence] if silence else []) + logs(directory, board, log):
        print(line)


def plans(directory: Path) -> list[str]:
    """Returns a line for each study that adds seeds by a plan: which look is complete, and what is open."""
    result = looks.states(directory, looks.planned(state.read(directory)))
    return [plain(f"{name}: {one.words}") for name, one in result.items()]


def watch(directory: Path, every: float, log: int) -> None:
    """Shows it until nothing is left to do: on a terminal in place, elsewhere as a block whenever something changed."""
    console = Console()
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, screen=False) as live:
                while True:
                    board, silence = run_states(directory)
                    ends = [silence] * bool(silence) + plans(directory) + logs(directory, board, log)
                    ends = fitting(ends, console.height // 2)
                    live.update(
                        Group(
                            table(board, {}, console.height - len(ends)),
                            *(Text(line, no_wrap=True, overflow="ellipsis") for line in ends),
                        ),
                        refresh=True,
                    )
                    if over(directory, board):
                        return
                    time.sleep(every)
        before: list[str] = []
        while True:
            board, silence = run_states(directory)
            lines = [
                *aligned([row(key, run) for key, run in board.items()]),
                summary(board),
                *([silence] if silence else []),
                *plans(directory),
                *logs(directory, board, log),
            ]
            if lines != before:
                print("\n".join([f"---- {time.strftime('%H:%M:%S')}", *lines]), flush=True)
            if over(directory, board):
                return
            before = lines
            time.sleep(every)
    except KeyboardInterrupt:
        return


def fitting(lines: list[str], room: int) -> list[str]:
    """Returns the part of the logs that fits a screen beside the table."""
    return lines if len(lines) <= room else [*lines[: room - 1], "... (without --watch, all lines are shown)"]


def over(directory: Path, board: Mapping[str, RunState]) -> bool:
    """Returns whether no launcher is running and no run or evaluation waits or runs."""

    def ended(run: RunState) -> bool:
        return run.status in ("diverged", "failed") or (run.status == "done" and not run.missing)

    return all(map(ended, board.values())) and not state.launcher(directory)


def logs(directory: Path, board: Mapping[str, RunState], number: int) -> list[str]:
    """Returns the last `number` lines of the log of every run that failed, or whose evaluation did."""
    results = []
    for key, run in board.items():
        path = directory / "runs" / key / "log.txt"
        if number and (run.status == "failed" or run.eval_errors) and (lines := tail(path, number)):
            results += ["", f"{key}: the end of {path}:", *(f"    {line}" for line in lines)]
    return results


def tail(path: Path, number: int) -> list[str]:
    """Returns a file's last lines, without reading all of it, and without terminal control characters."""
    try:
        with ordinary(path).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # A progress line overwrites itself: its last state counts.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n") if line.strip()]
    return [plain(line, keep="\t") for line in lines[-number:]]


if __name__ == "__main__":
    cli.main(main)
