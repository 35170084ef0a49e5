"""A report that follows a running sweep: rebuilt when files have changed, using files alone."""

import time
from collections.abc import Callable
from pathlib import Path

from report.claims import words
from report.reading.directories import Run, Sweep, dig, read

ENDED = ("failed", "diverged", "unreadable")


def follow(
    directory: Path, every: int, build: Callable[[Path, int], Path], wait: Callable[[float], None] = time.sleep
) -> Path:
    """Builds until every run has ended and is evaluated; the last page does not reload.

    directory: of a sweep or run.
        directory: a sweep's or a run's.
        every: seconds between two checks of the files, and between reloads of an open page.
        build: writes the report, given the directory and the seconds between reloads of its page.
        wait: sleeps.

    Raises:
        UserError: the directory is neither a sweep nor a run.
        KeyboardInterrupt: passed on, after writing a page that does not reload.
    """
    seen: dict[str, tuple[int, int]] | None = None
    try:
        while True:
            sweep = read(directory)
            before, seen = seen, stamps(sweep)
            ended = over(sweep)
            if seen != before or ended:
                path = build(directory, 0 if ended else every)
                print(f"{time.strftime('%H:%M:%S')}  {words.state(sweep)}  {path}", flush=True)
            if ended:
                return path
            wait(every)
    except KeyboardInterrupt:
        build(directory, 0)
        raise


def over(sweep: Sweep) -> bool:
    """True if nothing more is to come: every run has ended, and finished runs have their evaluations."""
    expected = {id(run): study.evals for study in sweep.studies for arm in study.arms for run in arm.runs}
    return bool(sweep.runs) and all(_over(run, expected.get(id(run), [])) for run in sweep.runs)


def _over(run: Run, evals: list[str]) -> bool:
    failed = dig(run.info, "eval_errors") or {}
    return run.status in ENDED or (run.status == "done" and all(name in run.evals or name in failed for name in evals))


def stamps(sweep: Sweep) -> dict[str, tuple[int, int]]:
    """Returns (mtime, size) of every file that the report reads."""
    paths = [sweep.directory / "sweep.json"]
    for run in sweep.runs:
        paths += [run.directory / name for name in ("config.json", "run.json", "metrics.jsonl")]
        paths += sorted((run.directory / "eval").glob("*.json"))
    results = {}
    for path in paths:
        try:
            about = path.stat()
        except OSError:
            continue
        results[str(path)] = (about.st_mtime_ns, about.st_size)
    return results
