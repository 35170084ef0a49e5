"""A run's output while it trains: metrics.jsonl, the trackers, and a live bar or plain lines."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from training.loop.trackers import Tracker
from training.run_directory.files import finite, read_lines, write_text


class MetricsLog:
    """Appends one JSON object per line to metrics.jsonl, and passes the same line to every tracker.

    On resume, lines after the checkpoint's step are dropped: they will be written again.
    """

    def __init__(self, workdir: Path, resume_step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path = workdir / "metrics.jsonl"
        self.trackers = trackers
        kept = [line for line in read_lines(self.path, torn="skip") if line.get("step", 0) <= resume_step]
        self.lines = len(kept)
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.file: TextIO = self.path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Writes one line, visible to readers at once."""
        line = finite(line)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        self.lines += 1
        for tracker in self.trackers:
            tracker.write(line)

    def sync(self) -> None:
        """Flushes everything written so far to disk."""
        os.fsync(self.file.fileno())

    def close(self, status: str) -> None:
        """Closes the file and the trackers; `status` is how the run ended."""
        self.file.close()
        for tracker in self.trackers:
            tracker.close(status)


class NoLog:
    """Replaces a `MetricsLog` in processes that do not write it."""

    lines = 0

    def write(self, line: dict[str, Any]) -> None:
        """Does nothing."""

    def sync(self) -> None:
        """Does nothing."""

    def close(self, status: str) -> None:
        """Does nothing."""


class Console:
    """A progress bar with loss, tokens/s and time left; plain lines if the output is not a terminal."""

    def __init__(self, name: str, quiet: bool = False, every_seconds: float = 2.0) -> None:
        self.name, self.quiet, self.every = name, quiet, every_seconds
        self.terminal = sys.stdout.isatty() and not quiet
        self.last = 0.0
        self.started = time.monotonic()
        self.first_progress: float | None = None
        if self.terminal:
            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")]
            columns += [TextColumn("{task.fields[text]}"), TimeRemainingColumn()]
            self.bar = Progress(*columns)
            self.task = self.bar.add_task(name, total=1.0, text="")

    def __enter__(self) -> "Console":
        if self.terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.terminal:
            self.bar.stop()

    def say(self, text: str) -> None:
        """Prints a separate line."""
        if self.terminal:
            self.bar.console.print(text, highlight=False, markup=False)
        elif not self.quiet:
            print(text, flush=True)

    def show(self, line: dict[str, Any], progress: float, last: bool = False) -> None:
        """Shows the newest metrics; `progress` is the share of the budget spent."""
        text = f"step {line['step']:,}  loss {line['train_loss']:.4f}  {line['tokens_per_second']:,.0f} tokens/s"
        if "val_loss" in line:
            text += f"  val loss {line['val_loss']:.4f}"
        if self.terminal:
            self.bar.update(self.task, completed=min(1.0, progress), text=text)
            return
        now = time.monotonic()
        if self.first_progress is None:
            self.first_progress, self.started = progress, now
        if self.quiet or (now - self.last < self.every and not last and "val_loss" not in line):
            return
        self.last = now
        gained = progress - self.first_progress
        left = (now - self.started) * (1 - progress) / gained if gained > 0 else None
        remaining = "" if left is None else f"  {max(0, round(left))} s left"
        print(f"{self.name}: {min(1.0, progress):4.0%}  {text}{remaining}", flush=True)
