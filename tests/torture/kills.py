"""Processes that are killed: while they train, write checkpoints, build data, evaluate, or write reports."""

import json
import signal
from pathlib import Path
from random import Random

from tests.torture.scene import LONG, Found, Scene, as_json, copied, newest_whole, resumed_from
from tests.torture.zygote import Child


def _pick(scene: Scene, draw: Random) -> str:
    return draw.choice(scene.flavours)


def _killed_often(scene: Scene, draw: Random, number: int, wait: float, at_checkpoint: bool, soft: bool) -> Found:
    """Kills a run up to four times, each time after a random while, then lets it end."""
    result, flavour = Found(), _pick(scene, draw)
    reference, workdir = scene.references[flavour], scene.place(number) / "run"

    def writing() -> bool:
        return any((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp"))

    for _ in range(draw.randint(1, 4)):
        child = scene.start(reference.config, workdir)
        if at_checkpoint:
            child.until(writing, LONG)
        child.wait(draw.uniform(0.0, wait))
        if not _end(child, draw, soft):
            break
        result.injected += 1
        _resume_point(scene, result, workdir, child)
    said = scene.finish(result, flavour, workdir)
    result.resumed = result.injected
    _in_order(result, said, workdir)
    return result


def _end(child: Child, draw: Random, soft: bool) -> bool:
    """Ends a child with SIGKILL, or with SIGTERM and SIGKILL after a short grace; False where it was done already."""
    if soft and child.signal(signal.SIGTERM):
        child.wait(draw.uniform(0.0, 1.5))
    child.signal(signal.SIGKILL)
    child.wait(LONG)
    return child.code != 0


def _resume_point(scene: Scene, found: Found, workdir: Path, child: Child) -> None:
    """Writes into the log which checkpoint was the newest whole one when the process was gone, if it was not done."""
    if (as_json(workdir / "run.json") or {}).get("status") == "done":
        return
    with child.log.open("a", encoding="utf-8") as log:
        log.write(f"\nkilled: the newest whole checkpoint is of step {newest_whole(workdir)}\n")


def _in_order(found: Found, said: str, workdir: Path) -> None:
    """Every start went on from the newest checkpoint that was whole when the one before it was killed."""
    expected = None
    for line in said.splitlines():
        if line.startswith("killed: "):
            expected = int(line.split()[-1])
        elif line.startswith("continuing at step ") and expected is not None:
            if int(line.split()[-1]) < expected:
                found.wrong(f"{workdir}: went on from step {line.split()[-1]}, not {expected}", lost=1)
            expected = None
    if expected and resumed_from(said) < expected:
        found.wrong(f"{workdir}: began again, though step {expected} had a checkpoint", lost=1)


def training(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL at random moments from the start to the end of a run."""
    seconds = min(reference.seconds for reference in scene.references.values())
    return _killed_often(scene, draw, number, seconds, at_checkpoint=False, soft=False)


def checkpoint_writing(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL within 60 ms after the temporary folder of a checkpoint has appeared."""
    return _killed_often(scene, draw, number, 0.06, at_checkpoint=True, soft=False)


def sigterm(scene: Scene, draw: Random, number: int) -> Found:
    """SIGTERM, and SIGKILL up to 1.5 s later."""
    seconds = min(reference.seconds for reference in scene.references.values())
    return _killed_often(scene, draw, number, seconds, at_checkpoint=False, soft=True)


def data_building(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL while the corpus is prepared and encoded in an empty cache, up to four times; then the run goes on."""
    result, flavour, place = Found(), _pick(scene, draw), scene.place(number)
    cache, workdir = place / "cache", place / "run"
    cache.mkdir()
    copied(scene.cache / "compiled", cache / "compiled").chmod(0o700)
    for _ in range(draw.randint(1, 4)):
        child = scene.start(scene.references[flavour].config, workdir, cache=cache)
        child.until((cache / "corpora").exists, LONG)
        child.wait(draw.uniform(0.0, 1.0))
        if not _end(child, draw, soft=False):
            break
        result.injected += 1
    scene.finish(result, flavour, workdir, cache=cache)
    left = [path for room in ("corpora", "tokens") for path in (cache / room).glob(".*") if path.is_dir()]
    if left:
        result.wrong(f"{cache}: left behind {left}", lost=1)
    result.resumed = result.injected
    return result


def _finished_run(scene: Scene, number: int) -> Path:
    return copied(scene.folder / "references" / scene.flavours[0], scene.place(number) / "run")


def _plain(result: object) -> object:
    return {name: value for name, value in result.items() if name != "seconds"} if isinstance(result, dict) else result


def evaluation(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL while an evaluation runs or is written; a result that is there is whole, and the same every time."""
    result, workdir = Found(), _finished_run(scene, number)
    log = workdir.with_name("eval.log")
    path, expected = workdir / "eval" / "loss.json", scene.folder / "references" / "loss.json"
    for _ in range(draw.randint(1, 3)):
        child = scene.zygote.start("evaluate", log, workdir=str(workdir), names=["loss"])
        child.wait(draw.uniform(0.0, 4.0))
        if _end(child, draw, soft=False):
            result.injected += 1
        if path.exists() and as_json(path) is None:
            result.wrong(f"{path}: half written", lost=1)
    child = scene.zygote.start("evaluate", log, workdir=str(workdir), names=["loss"])
    if not child.wait(LONG) or child.code != 0:
        result.wrong(f"{log}: failed: {child.said()[-1000:]}", lost=1)
        return result
    if not expected.exists():
        expected.write_text(path.read_text())
    if _plain(as_json(path)) != _plain(as_json(expected)):
        result.wrong(f"{path}: another result than before", differing=1)
    result.resumed = result.injected
    return result


def report_writing(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL while a report is written, for the first time or again; its files are whole, the old or the new."""
    result, workdir = Found(), _finished_run(scene, number)
    log, page = workdir.with_name("report.log"), workdir / "report" / "index.html"
    for _ in range(draw.randint(1, 4)):
        child = scene.zygote.start("report", log, directory=str(workdir))
        child.wait(draw.uniform(0.0, 3.0))
        if _end(child, draw, soft=False):
            result.injected += 1
        _whole(result, page.parent)
    child = scene.zygote.start("report", log, directory=str(workdir))
    if not child.wait(LONG) or child.code != 0:
        result.wrong(f"{log}: failed: {child.said()[-1000:]}", lost=1)
        return result
    _whole(result, page.parent, all_of_it=True)
    result.resumed = result.injected
    return result


ENDS = {".html": b"</html>", ".svg": b"</svg>", ".pdf": b"%%EOF", ".png": b"IEND\xaeB`\x82", ".parquet": b"PAR1"}


def _whole(found: Found, folder: Path, all_of_it: bool = False) -> None:
    for path in folder.glob("[!.]*"):
        if not path.read_bytes().rstrip().endswith(ENDS.get(path.suffix, b"")):
            found.wrong(f"{path}: half written", lost=1)
    if all_of_it:
        names = json.loads((folder / "files.json").read_text())
        missing = [name for name in names if not (folder / name).exists()]
        if missing or "index.html" not in names:
            found.wrong(f"{folder}: lacks {missing}", lost=1)
