"""A run's state, read from the files of its directory alone; no JAX, and never a write."""

import datetime
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from configs import provenance
from configs.documents import ordinary
from training.runtime import process as processes

STATUSES = ("done", "running", "preempted", "failed", "diverged", "waiting")
FINISHED = ("done", "diverged")  # skipped by a launcher; a diverged run would diverge again
STALE = 600.0  # seconds without activity after which a run on another host counts as ended
TAIL = 8192  # bytes at the end of metrics.jsonl in which its last lines are searched


@dataclass(frozen=True)
class RunState:
    """A run's state from its files.

    Attributes:
        status: one of STATUSES.
        note: details beyond the status ("its process ended", missing evaluations).
        error: the error of a failed or diverged run.
        step: optimizer steps done; `total`: of how many, an estimate (`about`) if the budget is not in steps.
        train_loss, val_loss: nats per token, the latest.
        tokens_per_second: of training, the latest.
        seconds_left: of training; None if unknown.
        seconds: spent so far (run.json's wall time in total).
        missing: requested evaluations with neither a result of the run's current state nor an error.
        stale: of these, results that are of something else, and of what.
        eval_errors: failed evaluations with their errors.
    """

    status: str
    note: str = ""
    error: str = ""
    step: int = 0
    total: int | None = None
    about: bool = False
    train_loss: float | None = None
    val_loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    seconds: float | None = None
    missing: tuple[str, ...] = ()
    stale: Mapping[str, str] = field(default_factory=dict)
    eval_errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Trained and evaluated: nothing is left to do."""
        return self.status == "diverged" or (self.status == "done" and not self.missing and not self.eval_errors)

    @property
    def error_line(self) -> str:
        """The last nonempty line of the error."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def missing_file(workdir: Path) -> Path:
    """Returns the file in a sweep's private folder with the error of a run whose directory is missing."""
    return workdir.parents[2] / ".sweep" / "missing" / f"{workdir.parent.name}.{workdir.name}"


def _missing(workdir: Path) -> str:
    try:
        file = ordinary(missing_file(workdir))
        return "" if file.is_symlink() else file.read_text(encoding="utf-8", errors="replace")[:TAIL]
    except (OSError, IndexError):
        return ""


def nested(workdir: Path) -> str:
    """Returns a message if another run's directory lies in one that has no checkpoint; else an empty string."""
    if (workdir / "checkpoints").exists():
        return ""
    for config in sorted(workdir.glob("*/config.json")):
        if (config.parent / "checkpoints").is_dir():
            return (
                f"{config.parent}: is a run directory inside {workdir}, which has no checkpoint; if it was moved back "
                "there, move what it holds up into that one; otherwise remove it"
            )
    return ""


def read(
    workdir: Path, evals: Sequence[str] = (), total_steps: int | None = None, amount: float | None = None
) -> RunState:
    """Returns the state of the run in `workdir`.

    Args:
        workdir: the run directory, which need not exist.
        evals: requested evaluations.
        total_steps: shown for a run that has not started.
        amount: the requested budget; a run done with a smaller one is to be lengthened.
    """
    try:
        run = json.loads(ordinary(workdir / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        error = _missing(workdir)
        return RunState("failed" if error else "waiting", error=error, total=total_steps, missing=tuple(evals))
    except (OSError, ValueError, RecursionError) as error:
        return RunState("failed", error=f"run.json cannot be read: {error}", missing=tuple(evals))
    if not isinstance(run, dict):
        return RunState("failed", error="run.json holds no object", missing=tuple(evals))
    run |= {name: _mapping(run.get(name)) for name in ("budget", "wall_time", "eval_errors")}
    status, note = _status(run, workdir)
    if status == "done" and shorter(run, amount):
        status, note = "preempted", f"done with budget {run['budget']['amount']:g}; continues to {amount:g}"
    lines = last_lines(workdir / "metrics.jsonl")
    latest = {**_numbers(run), **(lines[-1] if lines and status != "done" else {})}
    problems = _problems(workdir, [*evals, *run["eval_errors"]])
    errors = {name: str(text) for name, text in run["eval_errors"].items() if problems[name]}
    missing = tuple(name for name in evals if name not in errors and problems[name])
    stale = {name: problems[name] for name in missing if (workdir / "eval" / f"{name}.json").is_file()}
    if status in ("done", "preempted") and (changed := provenance.parent_problem(workdir, siblings_only=True)):
        status, note = "failed", changed
    total, about = _total(run, latest)
    return RunState(
        status=status,
        note=note or (_evaluations(missing, stale, errors) if status == "done" else ""),
        error=(note if status == "failed" else "") or str(run.get("error") or ""),
        step=_step(latest),
        total=total,
        about=about,
        train_loss=_number(latest.get("train_loss")),
        val_loss=_number(latest.get("val_loss")) or _number(run.get("val_loss")),
        tokens_per_second=_number(lines[-1].get("tokens_per_second")) if lines else None,
        seconds_left=_seconds_left(run, lines) if status == "running" else None,
        seconds=_number(run["wall_time"].get("total")),
        missing=missing,
        stale=stale,
        eval_errors=errors,
    )


def _status(run: Mapping[str, Any], workdir: Path) -> tuple[str, str]:
    status = run.get("status")
    if status == "running":
        return ("running", "") if alive(run, workdir) else ("preempted", "its process ended")
    if not isinstance(status, str) or status not in STATUSES:
        return "failed", f"run.json has the unknown status {status!r}"
    return status, ""


def shorter(run: Mapping[str, Any], amount: float | None) -> bool:
    """Returns whether run.json has a budget smaller than `amount`."""
    there = _number(_mapping(run.get("budget")).get("amount"))
    return amount is not None and there is not None and there < amount


def spent(run: Mapping[str, Any]) -> float:
    """Returns the share of its budget spent according to run.json, 0 .. 1; 1 if it does not say."""
    share = _spent(run, run)
    return 1.0 if share is None else share


def _problems(workdir: Path, evals: Sequence[str]) -> dict[str, str]:
    """Returns for each evaluation why it has no result of the run's current state; empty if it has."""
    there = [name for name in evals if (workdir / "eval" / f"{name}.json").is_file()]
    now = provenance.directory(workdir) if there else {}
    return {name: provenance.problem(workdir, name, now) for name in evals}


def _evaluations(missing: Sequence[str], stale: Mapping[str, str], errors: Mapping[str, str]) -> str:
    parts = []
    if never := [name for name in missing if name not in stale]:
        parts.append(f"not yet evaluated: {', '.join(never)}")
    parts += [f"to be evaluated again: {text}" for text in stale.values()]
    parts += [f"evaluation {name} failed: {_last_line(text)}" for name, text in errors.items()]
    return "; ".join(parts)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def alive(run: Mapping[str, Any], workdir: Path) -> bool:
    """Returns whether the process that wrote run.json is still working on it.

    On this host by its process id; a process with the same id but another start time, counted from boot because clocks
    jump, is a different one (if that is unknown: one younger than the file). On another host by the age of its files; a
    time further in the future than clocks can differ is ignored.
    """
    updated = timestamp(run.get("updated"))
    if run.get("host") != socket.gethostname():
        metrics = workdir / "metrics.jsonl"
        signs = (updated, metrics.stat().st_mtime if metrics.is_file() else 0.0)
        return any(abs(time.time() - sign) < STALE for sign in signs)
    try:
        process = psutil.Process(int(run.get("pid") or 0))
        began, known = processes.began(process.pid), run.get("pid_began")
        # `updated` is in whole seconds.
        same = began == known if began and known else process.create_time() <= updated + 2.0
        return process.status() != psutil.STATUS_ZOMBIE and same
    except (psutil.NoSuchProcess, ValueError, TypeError, OverflowError):
        return False
    except psutil.AccessDenied:
        return True


def now() -> str:
    """Returns the time in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def timestamp(text: Any) -> float:
    """Returns an ISO time as seconds since 1970; 0 if it is invalid."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def last_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the last complete objects of a JSON-lines file, without reading all of it."""
    try:
        with ordinary(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[1 if size > TAIL else 0 : -1]  # the first may be cut, the last is incomplete
    results = []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and _number(value.get("step")) is not None:
            results.append(value)
    return results


def _numbers(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: run.get(name) for name in ("step", "tokens", "flops", "train_loss", "val_loss")}


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e300 else None  # nan, too, compares false


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _step(line: Mapping[str, Any]) -> int:
    return int(_number(line.get("step")) or 0)


UNITS = {"steps": "step", "tokens": "tokens", "flops": "flops"}  # budget.kind -> the field that counts it


def _spent(run: Mapping[str, Any], line: Mapping[str, Any]) -> float | None:
    """Returns the share of the budget spent, 0 .. 1."""
    budget = _mapping(run.get("budget"))
    amount = _number(budget.get("amount"))
    if budget.get("kind") == "seconds":
        done = _number(_mapping(run.get("wall_time")).get("train"))
    else:
        done = _number(line.get(UNITS.get(str(budget.get("kind")), "")))
    return None if not amount or done is None else min(1.0, done / amount)


def _total(run: Mapping[str, Any], latest: Mapping[str, Any]) -> tuple[int | None, bool]:
    budget = _mapping(run.get("budget"))
    step = _step(latest)
    if budget.get("kind") == "steps":
        return round(_number(budget.get("amount")) or 0) or None, False
    spent = _spent(run, latest)
    return (round(step / spent), True) if spent and step else (None, False)


def _seconds_left(run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> float | None:
    if not lines:
        return None
    budget, line = _mapping(run.get("budget")), lines[-1]
    amount = _number(budget.get("amount"))
    spent, speed = _spent(run, line), _number(line.get("tokens_per_second"))
    if budget.get("kind") == "seconds":
        return None if spent is None or amount is None else (1 - spent) * amount
    tokens = _number(line.get("tokens"))
    if not spent or not speed or not tokens:
        return None
    step = _step(line)
    if budget.get("kind") == "steps" and amount is not None and step and len(lines) > 1:
        # Stages of a curriculum have different batch sizes: the latest one counts.
        steps = step - _step(lines[-2])
        each = (tokens - (_number(lines[-2].get("tokens")) or 0)) / steps if steps > 0 else tokens / step
        return max(0.0, (amount - step) * each / speed)
    return tokens * (1 - spent) / spent / speed
