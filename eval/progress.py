"""Progress of long work: a bar on a terminal, periodic lines elsewhere, nothing by default."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Item = TypeVar("Item")
EVERY = 10.0  # seconds between plain lines
WIDEST = 400  # characters of a table in a file


class Quiet:
    """Prints nothing."""

    def say(self, line: str) -> None:
        """Prints one line."""

    def show(self, table: Table) -> None:
        """Shows a table."""

    def track(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """Yields `items`, showing how many of `total` are done."""
        yield from items


class Reporter(Quiet):
    """Prints to a stream (standard error): a bar on a terminal, else lines."""

    def __init__(self, stream: TextIO | None = None, every: float = EVERY) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.every = every
        self.console = Console(file=self.stream, highlight=False)

    def say(self, line: str) -> None:
        """Prints one line."""
        print(line, file=self.stream, flush=True)

    def show(self, table: Table) -> None:
        """Prints a table to standard output, because it is the result; never truncated."""
        console = Console(highlight=False)
        width = console.measure(table, options=console.options.update(width=WIDEST)).maximum
        (console if console.is_terminal else Console(width=max(width, 80), highlight=False)).print(table)

    def track(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """Yields `items`, showing how many of `total` are done."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        if self.console.is_terminal:
            yield from self._bar(name, items, total)
        else:
            yield from self._lines(name, items, total)

    def _bar(self, name: str, items: Iterable[Item], total: int | None) -> Iterator[Item]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True) as bar:
            yield from bar.track(items, total=total, description=name)

    def _lines(self, name: str, items: Iterable[Item], total: int | None) -> Iterator[Item]:
        start = last = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - last >= self.every:
                last = now
                left = f" of {total}, {(now - start) / done * (total - done):.0f} s left" if total else ""
                self.say(f"{name}: {done}{left}")
