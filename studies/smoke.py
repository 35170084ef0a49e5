"""A study's sweeps made tiny, to show that they run: the same arms, a few updates, two seeds, little evaluation."""

from pathlib import Path
from typing import Any

from configs import cli
from report import files
from studies.results import ROOT
from studies.spec import Study

UPDATES = 4
TINY = {"eval.tokens": 1024, "eval.loss_tokens": 1024, "eval.bootstrap": 10, "optimizer.warmup_steps": 1}
RECALL = {"eval.retrieval.examples": 2, "eval.retrieval.depths": 1}
THROUGHPUT = {"eval.throughput.repeats": 1, "eval.throughput.new_tokens": 2}


def shrunk(file: str) -> dict:
    """Returns what a sweep file gives, shrunk."""
    given = cli.load_module(file).get_sweep()
    shared = {key: value for key, value in given.items() if key not in ("name", "title", "studies", "question")}
    studies = given.get("studies") or {given["name"]: shared}
    return dict(name=given["name"], studies={name: _study({**shared, **one}) for name, one in studies.items()})


def _study(given: dict[str, Any]) -> dict[str, Any]:
    fixed = {**given.get("fixed", {}), **TINY, **RECALL, **THROUGHPUT}
    if "data.curriculum" in fixed:
        stages = fixed["data.curriculum"]
        fixed["data.curriculum"] = tuple({**stage, "steps": 1, "batch_size": 4} for stage in stages)
    ladder = given.get("ladder")
    if ladder:
        rungs = len(ladder["values"])
        given = {**given, "ladder": {**ladder, "values": [UPDATES * (rung + 1) for rung in range(rungs)]}}
    else:
        fixed["budget.amount"] = UPDATES
    seeds = given.get("seeds", [0])
    return {**given, "fixed": fixed, "seeds": list(seeds)[:2] if isinstance(seeds, list | tuple | range) else [0, 1]}


def write(study: Study, folder: Path) -> Path:
    """Writes a study's shrunk sweep files; returns the folder to use in place of studies/."""
    (folder / study.name).mkdir(parents=True, exist_ok=True)
    for file in study.sweeps:
        source = str(ROOT / study.name / file)
        text = (
            f'"""{file} of the study {study.name}, shrunk."""\n\nfrom studies import smoke\n\n\n'
            f"def get_sweep() -> dict:\n    return smoke.shrunk({source!r})\n"
        )
        files.write(folder / study.name / file, text)
    return folder
