"""The source of each number, and the commands that reproduce it."""

import os
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

from report.page.formats import fixed
from report.page.table import Table
from report.reading.directories import Arm, Run, Study, Sweep, dig, number, objects, text
from report.reading.measures import from_eval

FILES = ("config.json", "run.json", "metrics.jsonl", "log.txt", "tracker.json")
COMMIT = re.compile(r"[0-9a-f]{7,64}")
ROOT = '"$SWEEP"'  # the sweep's directory, wherever the reader has it
AGAIN = '"$AGAIN"'


def sources(table: Table) -> list[tuple[str, str, str]]:
    """Returns (number, file and key of its source, command of the evaluation) for each column that has one."""
    results = []
    for column in table.columns:
        if column.source:
            file, _, key = column.source.partition(":")
            name = Path(file).stem
            command = f"python -m eval.run --workdir=RUN --evals={name}" if file.startswith("eval/") else "train.py"
            results.append((column.heading, f"{file}: {key}" if key else file, command))
    return results


def commands(sweep: Sweep, run: Run, evals: list[str]) -> list[str]:
    """Returns the shell lines that train a run again and evaluate it, in the checkout, with texts quoted."""
    place = f"{ROOT}/{shlex.quote(_inside(sweep, run))}" if _inside(sweep, run) else ROOT
    again = f"{AGAIN}/{shlex.quote(_inside(sweep, run))}" if _inside(sweep, run) else AGAIN
    commit = text(run.info.get("git_commit"))
    commit = commit if COMMIT.fullmatch(commit) else ""  # `-f` would be an option of git
    lines = [f"git checkout {shlex.quote(commit)}"] if commit else []
    if commit and run.info.get("git_dirty") is True:
        lines = [f"{lines[0]}  # the run also had uncommitted changes, which cannot be checked out"]
    lines.append(f"python train.py --config={place}/config.json --workdir={again}")
    made = [name for name in dict.fromkeys([*evals, *run.evals]) if name in run.evals]
    if made:
        lines.append(f"python -m eval.run --workdir={again} --evals={shlex.quote(','.join(made))}")
    return lines


def whole(sweep: Sweep) -> str:
    """Returns the command that runs the whole sweep again; empty if no sweep file is known."""
    if not sweep.file:
        return ""
    return f"python -m sweeps.launch --sweep={shlex.quote(sweep.file)} --out={AGAIN}"


def _inside(sweep: Sweep, run: Run) -> str:
    relative = os.path.relpath(run.directory, sweep.directory)
    return "" if relative == "." else Path(relative).as_posix()


def all_arms(study: Study) -> list[Arm]:
    """Returns the study's arms, and the arms that tried hyperparameters for them."""
    return [*study.arms, *(study.selection.trials if study.selection else [])]


def listed(study: Study, out: Path) -> list[dict[str, Any]]:
    """Returns every run of a study with its state, its loss and links to its files, relative to the report's folder."""
    loss = from_eval("loss", "loss")
    results = []
    for arm in all_arms(study):
        for run in arm.runs:
            step, seconds = number(run.info.get("step")), number(dig(run.info, "wall_time", "train"))
            results.append(
                {
                    "run": run,
                    "step": "" if step != step else f"{step:,.0f}",
                    "loss": fixed(loss(run), 4),
                    "seconds": "" if seconds != seconds else f"{seconds:,.0f} s",
                    "device": next((text(one.get("kind")) for one in objects(run.info, "devices")), ""),
                    "commit": text(run.info.get("git_commit"))[:10],
                    "files": links(run, out),
                }
            )
    return results


def links(run: Run, out: Path) -> list[tuple[str, str]]:
    """Returns (name, relative address) of the run's existing files."""
    names = [*FILES, *(f"eval/{name}.json" for name in run.evals), "eval/retrieval.parquet"]
    there = [name for name in names if (run.directory / name).exists()]
    start = Path(os.path.relpath(run.directory, out)).as_posix()
    return [(name, quote(f"{start}/{name}")) for name in there]
