"""Runs as rows of a table: live on a terminal, plain lines elsewhere, and once for `sweeps.status`."""

import math
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from configs.terminal import plain
from sweeps.store.run_status import STATUSES, RunState

COLUMNS = ("run", "status", "step", "loss", "val loss", "tokens/s", "left", "")
COLOURS = {"done": "green", "running": "cyan", "failed": "red", "diverged": "magenta", "preempted": "yellow"}
# Statuses shown first in a table too long for the screen.
URGENCY = {"running": 0, "failed": 1, "diverged": 1, "preempted": 2, "done": 3, "waiting": 4}
REFRESH = 0.25  # minimum seconds between redraws of the table
EVERY = 30.0  # seconds between plain lines about running runs

Row = tuple[str, ...]
Board = Mapping[str, RunState]


def duration(seconds: float | None) -> str:
    """Returns a formatted duration: `42 s`, `3 min 5 s`, `2 h 10 min`; empty for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def row(key: str, run: RunState, phase: str = "") -> Row:
    """Returns a run's cells, as COLUMNS."""
    status = phase or run.status
    total = f"{'~' if run.about else ''}{run.total}" if run.total is not None else ""
    steps = f"{run.step}/{total}" if total else str(run.step or "")
    over = run.status in ("failed", "diverged") and not phase
    return (
        plain(key),
        status,
        steps,
        _number(run.train_loss),
        _number(run.val_loss),
        f"{run.tokens_per_second:,.0f}" if run.tokens_per_second and run.status == "running" else "",
        duration(run.seconds_left),
        plain(run.error_line if over else "" if phase else run.note),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def summary(board: Board, phases: Mapping[str, str] | None = None) -> str:
    """Returns the counts in words, and the time left if finished runs allow an estimate."""
    counts = Counter(run.status for run in board.values())
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    evaluating = sum(phase.startswith("evaluating") for phase in (phases or {}).values())
    if evaluating:
        parts.append(f"{evaluating} being evaluated")
    failing = sum(bool(run.eval_errors) for run in board.values())
    if failing:
        parts.append(f"{failing} with a failed evaluation")
    at_work = sum(not queued(phase) for phase in phases.values()) if phases else counts["running"]
    left = time_left(board, at_work)
    return f"{len(board)} runs: {', '.join(parts)}" + (f"; about {duration(left)} left" if left else "")


def queued(phase: str) -> bool:
    """Returns whether a queue has the run, not started yet; its reason changes often and is not printed each time."""
    return phase.startswith("queued")


def time_left(board: Board, workers: int) -> float | None:
    """Returns an estimate for the whole sweep: the time left of running ones, the mean run's for the others."""
    took = [run.seconds for run in board.values() if run.status == "done" and run.seconds]
    waiting = sum(run.status in ("waiting", "preempted") for run in board.values())
    running = [run.seconds_left for run in board.values() if run.status == "running"]
    if not workers or (waiting and not took) or None in running:
        return None
    return (sum(part for part in running if part) + waiting * (sum(took) / len(took) if took else 0)) / workers


def aligned(rows: Sequence[Row], columns: Row = COLUMNS) -> list[str]:
    """Returns plain lines with aligned columns, the heading first; nothing is truncated."""
    cells = [columns, *rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def table(board: Board, phases: Mapping[str, str], height: int | None = None) -> Group:
    """Returns the table for a terminal, at most `height` lines; rows that need attention come first."""
    keys = list(board)
    busy = {key for key, phase in phases.items() if not queued(phase)}
    room = len(keys) if height is None else max(3, height - 6)
    if len(keys) > room:
        urgent = sorted(keys, key=lambda key: -1 if key in busy else URGENCY[board[key].status])[: room - 1]
        keys = [key for key in keys if key in set(urgent)]
    grid = Table(box=None, pad_edge=False)
    for i, name in enumerate(COLUMNS):
        right = name in ("step", "loss", "val loss", "tokens/s", "left")
        grid.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis", ratio=None)
        grid.columns[i].header_style = "bold"
    for key in keys:
        cells = row(key, board[key], phases.get(key, ""))
        colour = COLOURS.get("running" if key in busy else board[key].status, "")
        grid.add_row(*(Text(cell, style=colour if i == 1 else "") for i, cell in enumerate(cells)))
    hidden = [f"... and {len(board) - len(keys)} more"] if len(keys) < len(board) else []
    return Group(grid, *map(Text, [*hidden, "", summary(board, phases)]))


class LiveTable:
    """A live table of the runs on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, transient=False)
        self.last = -math.inf
        self.shown: tuple[Board, Mapping[str, str]] | None = None

    def __enter__(self) -> "LiveTable":
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown is not None:
            self._draw(*self.shown)  # the final state
        self.live.stop()

    def update(self, board: Board, phases: Mapping[str, str], changed: Collection[str] | None = None) -> None:
        """Shows the state of every run, at most four times a second."""
        self.shown = board, phases
        if time.monotonic() - self.last >= REFRESH:
            self._draw(board, phases)

    def _draw(self, board: Board, phases: Mapping[str, str]) -> None:
        self.live.update(table(board, phases, self.console.height), refresh=True)
        self.last = time.monotonic()

    def say(self, line: str) -> None:
        """Prints a line above the table."""
        self.console.print(Text(plain(line)))


class Lines:
    """A line whenever a run starts, ends or is evaluated, and periodically for running ones."""

    def __init__(self, every: float = EVERY) -> None:
        self.every = every
        self.shown: dict[str, str] = {}
        self.last = time.monotonic()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, board: Board, phases: Mapping[str, str], changed: Collection[str] | None = None) -> None:
        """Prints changes since the last call; considers only `changed`, if given."""
        due = time.monotonic() - self.last >= self.every
        first = not self.shown
        for key in board if changed is None or first else sorted(changed):
            run = board[key]
            status = phases.get(key) or run.status
            waits = queued(status)
            status = "queued" if waits else status
            differs = self.shown.get(key) != status
            self.shown[key] = status
            # Work of an earlier launch is in the summary.
            often = (first or due) and key in phases and not waits
            if (differs and not first and status != "ending") or often:
                self.say(f"{key}: {_told(run, phases.get(key, ''))}")
        if first or due:
            self.last = time.monotonic()
            self.say(summary(board, phases))

    def say(self, line: str) -> None:
        """Prints a line with a timestamp."""
        print(f"{time.strftime('%H:%M:%S')} {plain(line)}", flush=True)


def _told(run: RunState, phase: str) -> str:
    """Returns one run in words, for one line."""
    _, status, steps, loss, val_loss, speed, left, note = row("", run, phase)
    named = [
        (steps if run.step else "", "step {}"),
        (loss, "loss {}"),
        (val_loss, "val loss {}"),
        (speed, "{} tokens/s"),
        (left, "{} left"),
        (note, "{}"),
    ]
    return "  ".join([status, *(words.format(value) for value, words in named if value)])


def display() -> LiveTable | Lines:
    """Returns the display that suits standard output."""
    return LiveTable(Console()) if sys.stdout.isatty() else Lines()
