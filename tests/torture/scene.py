"""The stage of a torture: small runs that nothing happens to, and what is compared with them afterwards."""

import json
import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import base, cli, fields, validate
from tests.torture.zygote import Child, Zygote
from training.run_directory import integrity
from training.run_directory.files import read_json, read_lines

LONG = 1200.0  # seconds that nothing here takes, however busy the machine
TIMED = ("tokens_per_second", "mfu")  # what may differ between two traces
WORDS = "the of and to in is you that it he was for on are as with his they at be this from have or by one had".split()
BASE = {
    "model.width": 16, "model.num_layers": 2, "model.num_heads": 2, "data.split": "first", "data.tokenizer": "char",
    "data.length": 16, "data.batch_size": 4, "budget.amount": 300, "optimizer.learning_rate": 1e-2,
    "optimizer.warmup_steps": 20, "checkpoint.every_steps": 20, "log.every_steps": 7, "log.tensorboard": False,
    "eval.every_steps": 100, "eval.tokens": 512, "eval.batch_size": 8, "eval.multiples": (1,), "eval.bootstrap": 50,
}  # fmt: skip
# What the runs do that could go wrong when they are resumed.
FLAVOURS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"model.dropout": 0.1, "data.packing": "segments"},
    "curriculum": {
        "data.curriculum": ({"steps": 90, "length": 7, "batch_size": 8, "weights": {"text": 0.0, "mqar": 1.0}},),
        "data.weights.mqar": 1.0, "data.mqar.vocab_size": 16, "data.mqar.pairs": 2,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A run that nothing happened to: its trace, the hash of its parameters, how long it took."""

    config: dict[str, Any]
    trace: list[dict[str, Any]]
    digest: str
    seconds: float


@dataclass
class Found:
    """What became of a round of faults of one kind."""

    injected: int = 0
    resumed: int = 0
    lost: int = 0
    differing: int = 0
    notes: list[str] = field(default_factory=list)

    def wrong(self, note: str, *, lost: int = 0, differing: int = 0) -> None:
        """Notes what should not be."""
        self.lost += lost
        self.differing += differing
        self.notes.append(note)


def trace(workdir: Path) -> list[dict[str, Any]]:
    """Returns metrics.jsonl without what is measured in seconds."""
    lines = read_lines(workdir / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]


class Scene:
    """The folder that everything happens in, with a process that forks, a corpus, and the references."""

    def __init__(self, folder: Path, flavours: tuple[str, ...] = tuple(FLAVOURS), steps: int = 300) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.steps = folder, steps
        self.cache = folder / "cache"
        env = {"ABLAX_CACHE": str(self.cache), "JAX_PLATFORMS": "cpu"}
        self.zygote = Zygote(env)
        draw = random.Random(0)
        (folder / "words.txt").write_text(" ".join(draw.choice(WORDS) for _ in range(15_000)))
        self.references = {name: self._reference(name) for name in flavours}
        self.flavours = flavours

    def config(self, flavour: str, **changes: Any) -> dict[str, Any]:
        """Returns a flavour's config, every field, with changes (`__` for a dot)."""
        config = base.get_config()
        dotted = {name.replace("__", "."): value for name, value in changes.items()}
        steps = {"budget.amount": self.steps, "data.path": str(self.folder / "words.txt")}
        cli.apply(config, BASE | steps | FLAVOURS[flavour] | dotted)
        return fields.to_dict(validate.resolve(config))

    def _reference(self, flavour: str) -> Reference:
        config, workdir = self.config(flavour), self.folder / "references" / flavour
        begun = time.monotonic()
        child = self.start(config, workdir)
        if not child.wait(LONG) or child.code != 0:
            raise RuntimeError(f"the run that nothing happens to failed:\n{child.said()}")
        return Reference(config, trace(workdir), digest_of(workdir), time.monotonic() - begun)

    def start(self, config: dict[str, Any], workdir: Path, cache: Path | None = None, **faults: Any) -> Child:
        """Starts training in a child; its output goes to WORKDIR.log, beside the run directory."""
        log = workdir.with_name(f"{workdir.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {"ABLAX_CACHE": str(cache)} if cache else {}
        given = {"config": config, "workdir": str(workdir), "digest": str(digest_file(workdir)), **faults}
        return self.zygote.start("train", log, env, **given)

    def place(self, number: int) -> Path:
        """Returns an empty folder for one round."""
        folder = self.folder / "rounds" / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish(self, found: Found, flavour: str, workdir: Path, child: Child | None = None, **given: Any) -> str:
        """Has a run go on to its end, compares it with its reference, and returns what was said."""
        reference = self.references[flavour]
        child = child or self.start(given.pop("config", reference.config), workdir, **given)
        if not child.wait(LONG):
            child.signal(9)
            found.wrong(f"{workdir}: did not end within {LONG:.0f} s", lost=1)
        elif child.code != 0:
            found.wrong(f"{workdir}: ended with code {child.code}: {child.said()[-2000:]}", lost=1)
        else:
            self.compare(found, flavour, workdir)
        return child.said()

    def compare(self, found: Found, flavour: str, workdir: Path) -> None:
        """Compares a finished run with its reference."""
        reference, here = self.references[flavour], trace(workdir)
        if read_json(workdir / "run.json").get("status") != "done" or len(here) < len(reference.trace):
            found.wrong(f"{workdir}: {len(here)} of {len(reference.trace)} lines of metrics", lost=1)
        if here != reference.trace or digest_of(workdir) != reference.digest:
            found.wrong(f"{workdir}: another trace or other parameters", differing=1)

    def close(self) -> None:
        """Ends every process."""
        self.zygote.close()


def digest_file(workdir: Path) -> Path:
    """Returns the file beside a run directory that takes the hash of its parameters."""
    return workdir.with_name(f"{workdir.name}.digest")


def digest_of(workdir: Path) -> str:
    """Returns the hash of a finished run's parameters."""
    path = digest_file(workdir)
    return path.read_text() if path.exists() else ""


def newest_whole(workdir: Path) -> int:
    """Returns the step of the newest whole checkpoint; 0 where there is none."""
    steps = [int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
    return max((step for step in steps if not integrity.problem(workdir / "checkpoints" / str(step))), default=0)


def resumed_from(said: str) -> int:
    """Returns the step that the last start went on from; 0 where it began at the beginning."""
    lines = [line for line in said.splitlines() if line.startswith("continuing at step ")]
    return int(lines[-1].split()[-1]) if lines else 0


def until(condition: Any, seconds: float, step: float = 0.002) -> bool:
    """Waits until a condition holds; tells whether it did in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


def as_json(path: Path) -> Any:
    """Returns a JSON file's value, or None where it is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def copied(source: Path, to: Path) -> Path:
    """Copies a folder."""
    shutil.copytree(source, to, symlinks=True)
    return to


def can_mount() -> bool:
    """Tells whether this process might mount file systems."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("mount") is not None
