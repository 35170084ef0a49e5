"""What is spoilt and which command then reads it. A kind spoils a copy of the material and returns the calls."""

import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import fields
from tests.fuzz import mutate
from tests.fuzz.material import SWEEP, flags

Main = Callable[[list[str]], int | None]


@dataclass(frozen=True)
class Case:
    """One input: how it was spoilt, the commands that read it, what their refusal must name, what must hold after."""

    how: str
    calls: list[tuple[str, list[str]]]
    names: tuple[str, ...] = ()  # one of them must be in an error
    check: Callable[[], str] = lambda: ""  # what is wrong with the results, where a command took the input


Kind = Callable[[random.Random, Path, Path], Case]  # (draw, the material, an empty folder to work in)


def _copy(source: Path, target: Path) -> Path:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copy)
    else:
        shutil.copy(source, target)
    return target


def config_json(draw: random.Random, material: Path, work: Path) -> Case:
    """A config.json given as --config."""
    path = _copy(material / "run" / "config.json", work / "config.json")
    how = mutate.file(draw, path)
    return Case(
        how, [("train", [f"--config={path}", f"--workdir={work / 'new'}", "--quiet"])], (path.name, "mesh", *FIELDS)
    )


def preset(draw: random.Random, material: Path, work: Path) -> Case:
    """A config file in Python, damaged as a file; what it does is its author's."""
    path = _copy(material / "preset.py", work / "preset.py")
    content, how = mutate.raw(draw, path.read_bytes())
    path.write_bytes(content)
    arguments = [f"--config={path}", f"--workdir={work / 'new'}", "--quiet"]
    return Case(how, [("train", arguments)], (path.name, *FIELDS))


def override(draw: random.Random, material: Path, work: Path) -> Case:
    """Fields on the command line."""
    given = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        name = draw.choice(FIELDS)
        value = draw.choice(
            [*map(str, mutate.ODD), "(1,)", "('rope', 'none')", "(0,)", "((((", "__import__('os')", "8", "1e-3"]
        )
        given.append(f"--config.{name}={value}")
    arguments = [f"--config={material / 'preset.py'}", f"--workdir={work / 'new'}", "--quiet", *flags(), *given]
    return Case(
        " ".join(given)[:200], [("train", arguments)], (*(one.split("=")[0][9:] for one in given), "mesh", *FIELDS)
    )


def text(draw: random.Random, material: Path, work: Path) -> Case:
    """A corpus of text or of lines of JSON, trained on."""
    path = _copy(material / "text" / draw.choice(("words.txt", "lines.jsonl")), work)
    path = next(work.iterdir())
    how = mutate.file(draw, path)
    split = draw.choice(("first", "hash"))
    arguments = [f"--config={material / 'preset.py'}", f"--workdir={work / 'new'}", "--quiet", *flags()]
    arguments += [f"--config.data.path={path}", f"--config.data.split={split}"]
    arguments += [f"--config.data.packing={draw.choice(('contiguous', 'segments'))}"]

    def check() -> str:
        info = work / "new" / "run.json"
        loss = json.loads(info.read_text()).get("val_loss") if info.exists() else None
        return "" if loss is None or 0 < loss < 50 else f"the loss is {loss}"

    return Case(f"{path.name}, {split}: {how}", [("train for real", arguments)], (path.name, "data."), check)


def tokenizer(draw: random.Random, material: Path, work: Path) -> Case:
    """A tokenizer.json that a run is to use."""
    path = _copy(material / "tokenizer.json", work / "tokenizer.json")
    how = mutate.file(draw, path)
    arguments = [f"--config={material / 'preset.py'}", f"--workdir={work / 'new'}", "--quiet", *flags()]
    return Case(how, [("train", [*arguments, f"--config.data.tokenizer={path}"])], (path.name, "data.", "model."))


def prompts(draw: random.Random, material: Path, work: Path) -> Case:
    """A safetensors file of prompts."""
    path = _copy(material / "prompts.safetensors", work / "prompts.safetensors")
    how = mutate.file(draw, path)
    arguments = [
        f"--workdir={material / 'run'}",
        f"--tokens={path}",
        f"--out={work / 'out.safetensors'}",
        "--max_new=2",
    ]
    return Case(how, [("generate", arguments)], (path.name,))


def checkpoint(draw: random.Random, material: Path, work: Path) -> Case:
    """A Hugging Face checkpoint."""
    folder = _copy(material / "hf", work / "hf")
    path = draw.choice(sorted(p for p in folder.iterdir() if p.is_file()))
    if draw.random() < 0.4:
        path = folder / "config.json"
    how = mutate.file(draw, path)
    arguments = [f"--from={folder}", f"--workdir={work / 'new'}"]

    def check() -> str:
        result = json.loads((work / "new" / "config.json").read_text()) if (work / "new").exists() else {}
        return "" if not result or result["model"]["width"] == 16 else "the width is another"

    return Case(f"{path.name}: {how}", [("from_hf", arguments)], (path.name, "hf", *FIELDS), check)


def run_directory(draw: random.Random, material: Path, work: Path) -> Case:
    """The files of a run directory, read again by every command that takes one."""
    run = _copy(material / "run", work / "run")
    names = (
        "config.json",
        "config.json",
        "run.json",
        "metrics.jsonl",
        "eval/loss.json",
        "tokenizer/ablax_tokenizer.json",
    )
    path = run / draw.choice(names)
    how = mutate.file(draw, path)
    arguments = [f"--config={material / 'preset.py'}", f"--workdir={run}", "--quiet", *flags()]
    calls: list[tuple[str, list[str]]] = [
        ("train for real", arguments),
        ("generate", [f"--workdir={run}", "--prompt=of the", "--max_new=2"]),
        ("evaluate", [f"--workdir={run}", "--evals=loss"]),
        ("to_hf", [f"--workdir={run}", f"--to={work / 'hf'}"]),
        ("surgery", ["drop_heads", f"--from={run}", f"--workdir={work / 'other'}", "--heads=0:1"]),
    ]
    return Case(f"{path.name}: {how}", [draw.choice(calls)], (path.name, path.parent.name, "run", *FIELDS))


def report(draw: random.Random, material: Path, work: Path) -> Case:
    """The files of a sweep directory, reported and told."""
    sweep = _copy(material / "sweep", work / "sweep")
    files = sorted(p for p in sweep.rglob("*") if p.suffix in (".json", ".jsonl") and "report" not in p.parts)
    path = sweep / "sweep.json" if draw.random() < 0.25 else draw.choice(files)
    how = mutate.file(draw, path)
    calls: list[tuple[str, list[str]]] = [("report", [str(sweep)]), ("status", [str(sweep)])]
    if draw.random() < 0.1:
        calls.append(("compare", [str(sweep), str(material / "run"), f"--out={work / 'together'}"]))

    def check() -> str:
        table = sweep / "report" / "table.csv"
        result = table.read_text().lower() if table.exists() else ""
        return (
            "a number in table.csv is not finite" if any(f",{bad}" in result for bad in ("nan", "inf", "-inf")) else ""
        )

    return Case(f"{path.relative_to(sweep)}: {how}", calls, (path.name, sweep.name), check)


def sweep_file(draw: random.Random, material: Path, work: Path) -> Case:
    """A sweep file whose dictionary holds something else; or a damaged one."""
    path = work / "small.py"
    value = {**SWEEP, "base": str(material / "preset.py")}
    if draw.random() < 0.8:
        given, how = mutate.json_value(draw, value, (*mutate.ODD, "h{model.num_heads}", {"model.num_heads": [1]}))
        path.write_text(_as_python(given), encoding="utf-8", errors="surrogatepass")
    else:
        content, how = mutate.raw(draw, _as_python(value).encode())
        path.write_bytes(content)
    return Case(
        how, [("expand", [f"--sweep={path}"])], (path.name, "base", *SWEEP, *FIELDS, "studies", "arm", "unknown key")
    )


def _as_python(value: Any) -> str:
    return f"nan, inf = float('nan'), float('inf')\n\n\ndef get_sweep():\n    return {value!a}\n"


def sweep_directory(draw: random.Random, material: Path, work: Path) -> Case:
    """sweep.json or a run's config.json, when a launcher takes the sweep up again."""
    sweep = _copy(material / "launched", work / "launched")
    files = [sweep / "sweep.json", *sorted(sweep.glob("runs/*/*/*.json"))]
    path = draw.choice(files)
    how = mutate.file(draw, path)
    calls = [("take up", [f"--sweep={material / 'small.py'}", f"--out={sweep}"]), ("status", [str(sweep)])]
    return Case(f"{path.relative_to(sweep)}: {how}", calls, (path.name, sweep.name, "runs/", *FIELDS))


def trained(draw: random.Random, material: Path, work: Path) -> Case:
    """Small numbers in the fields that shape a run, trained and evaluated for real."""
    small: dict[str, tuple[Any, ...]] = {
        "model.width": (2, 4, 16),
        "model.num_heads": (1, 2),
        "model.head_dim": (1, 2, 3, 4, 7),
        "model.num_kv_heads": (1, 2),
        "model.position.kind": ("none", "learned", "rope", "alibi", "t5", "cope", "fire", "xpos", "p_rope"),
        "model.position.rope.fraction": (0.1, 0.5, 1.0),
        "model.attention.window": (1, 2, 100),
        "model.vocab_size": (1, 2, 256),
        "model.attention.sinks": (True,),
        "data.length": (1, 2, 16),
        "data.batch_size": (1, 4),
        "data.packing": ("contiguous", "segments"),
        "optimizer.learning_rate": (0.0, -1.0, 1e-8, 1e3),
        "optimizer.warmup_steps": (0, 1, 1000),
        "budget.amount": (0.5, 1, 2),
        "eval.every_steps": (1,),
        "eval.tokens": (0, 1),
        "seed": (0, 2**32, 2**63 - 1, 2**63, -1),
        "data.tokenizer": ("byte", "char"),
    }
    chosen = {name: draw.choice(small[name]) for name in draw.sample(list(small), draw.randrange(1, 6))}
    run = work / "new"
    arguments = [f"--config={material / 'preset.py'}", f"--workdir={run}", "--quiet"]
    calls = [("train for real", [*arguments, *flags(**chosen)])]
    calls += [("evaluate if done", [f"--workdir={run}", "--evals=loss,heads"])]

    def check() -> str:
        loss = run / "eval" / "loss.json"
        value = json.loads(loss.read_text())["loss"] if loss.exists() else 1.0
        info = json.loads((run / "run.json").read_text()) if (run / "run.json").exists() else {}
        if info.get("status") == "diverged":
            return ""
        return "" if value is not None and math.isfinite(value) and value >= 0 else f"the loss is {value}"

    return Case(str(chosen), calls, tuple(FIELDS), check)


FIELDS = tuple(fields.types())
TRAINED = ("prompts", "checkpoint", "run directory", "sweep results")  # need a run that was trained
KINDS: dict[str, Kind] = {
    "config.json": config_json,
    "config file": preset,
    "field": override,
    "corpus": text,
    "tokenizer.json": tokenizer,
    "prompts": prompts,
    "checkpoint": checkpoint,
    "run directory": run_directory,
    "sweep results": report,
    "sweep file": sweep_file,
    "sweep directory": sweep_directory,
    "small numbers": trained,
}
