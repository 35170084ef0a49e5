"""Sweeps: workers and launchers that are killed, evaluations of another step, a corpus that changes meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil

from configs import provenance
from report.claims import comparable
from report.reading import directories
from tests.torture.scene import BASE, LONG, Found, Scene, as_json, trace, until

SWEEP = """
def get_sweep():
    return dict(
        name="tortured", base="configs/tiny.py", fixed={fixed!r}, axes=[{{"model.dropout": [0.0, 0.1]}}],
        arm=lambda config: f"dropout{{config.model.dropout}}", seeds=[0], evals=["loss"],
    )
"""
_building = threading.Lock()


def worker_killed(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL, as for want of memory, to a worker or to the launcher of a sweep; tried again by policy, or by hand."""
    result, place = Found(), scene.place(number)
    whole = _whole(scene, scene.folder / "words.txt", "sweep")
    sweep, out = _file(scene, place, scene.folder / "words.txt"), place / "out"
    process = _begun(scene, draw, sweep, out)
    kind = draw.choice(("worker", "launcher"))
    result.injected += _kill(process, kind)
    process.wait(LONG)
    if kind == "launcher":
        _gone(sweep)
    _to_the_end(scene, result, sweep, out)
    _compare(result, out, whole)
    result.resumed = result.injected
    return result


def stale_evaluation(scene: Scene, draw: Random, number: int) -> Found:
    """A sweep is stopped and its runs are evaluated as they stand; what it ends with is of its finished runs alone."""
    result, place = Found(), scene.place(number)
    whole = _whole(scene, scene.folder / "words.txt", "sweep")
    sweep, out = _file(scene, place, scene.folder / "words.txt"), place / "out"
    process = _begun(scene, draw, sweep, out)
    process.send_signal(signal.SIGTERM)
    process.wait(LONG)
    for path in sorted(out.glob("runs/*/seed*")):
        status = (as_json(path / "run.json") or {}).get("status")
        if status == "done" or not any(path.glob("checkpoints/[0-9]*")):
            continue
        log = place / f"{path.parent.name}.log"
        child = scene.zygote.start("evaluate", log, workdir=str(path), names=["loss"])
        if not child.wait(LONG) or child.code != 0:
            result.wrong(f"{log}: failed: {child.said()[-1000:]}", lost=1)
        result.injected += 1
    if code := _launch(scene, sweep, out).wait(LONG):
        result.wrong(f"{out}: the sweep ended with {code}; see {out}.log", lost=1)
    _compare(result, out, whole)
    result.resumed = result.injected
    return result


def corpus_changes(scene: Scene, draw: Random, number: int) -> Found:
    """The corpus of a sweep changes while it runs or is stopped, and is put back; each number is of the data it names.

    A run that began with one corpus is refused another one; one that begins with the changed corpus says so, and is
    not compared with those of the first.
    """
    result, place = Found(), scene.place(number)
    original, way = (scene.folder / "words.txt").read_text(), draw.choice(sorted(CHANGES))
    changed = CHANGES[way](original)
    path, other = place / "corpus" / "words.txt", scene.folder / "changed" / way / "words.txt"
    for file, content in ((path, original), (other, changed)):
        _write(file, content)
    wholes = [_whole(scene, scene.folder / "words.txt", "sweep"), _whole(scene, other, f"sweep-{way}")]
    sweep, out = _file(scene, place, path), place / "out"
    process = _begun(scene, draw, sweep, out)
    if draw.random() < 0.5:
        process.send_signal(signal.SIGTERM)
        process.wait(LONG)
        _write(path, changed)
        process = _launch(scene, sweep, out)
    else:
        _write(path, changed)
    result.injected += 1
    process.wait(LONG)
    _named(result, out, wholes)
    _write(path, original)
    code = _launch(scene, sweep, out).wait(LONG)
    _named(result, out, wholes)
    left = [
        run for run in out.glob("runs/*/seed*") if _fingerprint(run) != _fingerprint(wholes[0] / run.relative_to(out))
    ]
    if left and not _marked(out):
        result.wrong(f"{out}: {left[0]} has other data, and is compared all the same", differing=1)
    if not left:
        _compare(result, out, wholes[0])
    if code != 0 and not left:
        result.wrong(f"{out}: ended with {code} though its corpus is as it was; see {out}.log", lost=1)
    result.resumed = result.injected
    return result


# What becomes of a corpus: it grows, or as many bytes say something else.
CHANGES = {"longer": lambda text: f"{text} {text[:5000]}", "other words": lambda text: text.replace("the", "any")}


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{threading.get_ident()}")
    part.write_text(content)
    part.replace(path)


def _file(scene: Scene, place: Path, corpus: Path) -> Path:
    fixed = {**BASE, "data.path": str(corpus), "budget.amount": scene.steps, "data.length": 16}
    path = place / "sweep.py"
    path.write_text(SWEEP.format(fixed=fixed))
    return path


def _whole(scene: Scene, corpus: Path, name: str) -> Path:
    """Returns the sweep that nothing happens to."""
    whole = scene.folder / "references" / name
    with _building:
        if not (whole / "report" / "index.html").exists():
            place = scene.folder / "files" / name
            place.mkdir(parents=True, exist_ok=True)
            if _launch(scene, _file(scene, place, corpus), whole).wait(LONG):
                raise RuntimeError(f"the sweep that nothing happens to failed; see {whole}.log")
    return whole


def _begun(scene: Scene, draw: Random, sweep: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Launches a sweep, and returns a random while after its first checkpoint."""
    process = _launch(scene, sweep, out)
    until(lambda: process.poll() is not None or any(out.glob("runs/*/*/checkpoints/[0-9]*")), LONG, 0.02)
    time.sleep(draw.uniform(0.0, 2.0))
    return process


def _to_the_end(scene: Scene, found: Found, sweep: Path, out: Path) -> None:
    for _ in range(2):
        if _launch(scene, sweep, out).wait(LONG) == 0:
            return
    found.wrong(f"{out}: the sweep does not come to its end; see {out}.log", lost=1)


def _fingerprint(run: Path) -> str | None:
    data = (as_json(run / "run.json") or {}).get("data") or {}
    return data.get("fingerprint")


def _named(found: Found, out: Path, wholes: list[Path]) -> None:
    """Every run that counts as done and measured has the numbers of the sweep with the data that it names."""
    for run in _measured(out):
        same = [whole / run.relative_to(out) for whole in wholes]
        same = [one for one in same if _fingerprint(one) == _fingerprint(run)]
        if not same:
            found.wrong(f"{run}: names data that there never were", differing=1)
        elif trace(run) != trace(same[0]) or _loss(run) != _loss(same[0]):
            found.wrong(f"{run}: loss {_loss(run)}, not {_loss(same[0])}, or another trace", differing=1)


def _measured(out: Path) -> Iterator[Path]:
    for run in sorted(out.glob("runs/*/seed*")):
        if (as_json(run / "run.json") or {}).get("status") == "done" and not provenance.problem(run, "loss"):
            yield run


def _loss(run: Path) -> float | None:
    return (as_json(run / "eval" / "loss.json") or {}).get("loss")


def _marked(out: Path) -> bool:
    """Tells whether the report compares no runs of different data."""
    (study,) = directories.read(out).studies
    names = {arm.name: {_fingerprint(run.directory) for run in arm.done} for arm in study.arms}
    several = len(set().union(*names.values())) > 1
    return not several or bool(comparable.apart(study, "loss"))


def _launch(scene: Scene, sweep: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "sweeps.launch", f"--sweep={sweep}", f"--out={out}"]
    # Apart from the runs' cache: there every file of a corpus is one that a run reads, and damage to it must be seen.
    cache = scene.cache.with_name("sweeps-cache")
    env = {**os.environ, "ABLAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(f"{out.name}.log").open("ab") as log:
        return subprocess.Popen([*command, "--workers=2", "--retries=2"], stdout=log, stderr=log, env=env)


def _kill(process: subprocess.Popen[bytes], kind: str) -> int:
    try:
        below = [p for p in psutil.Process(process.pid).children() if "spawn_main" in " ".join(p.cmdline())]
        victim = below[0] if kind == "worker" and below else psutil.Process(process.pid)
        victim.kill()
    except (psutil.Error, IndexError):
        return 0
    return 1


def _gone(sweep: Path) -> None:
    """Waits until the workers of a launcher that was killed have saved their runs."""
    until(lambda: not any(_of(process, sweep) for process in psutil.process_iter()), 60.0, 0.2)


def _of(process: psutil.Process, sweep: Path) -> bool:
    try:
        return any(str(sweep.parent) in file.path for file in process.open_files())
    except psutil.Error:
        return False


def _compare(found: Found, out: Path, whole: Path) -> None:
    for path in sorted(whole.glob("runs/*/seed*")):
        here = out / path.relative_to(whole)
        if (as_json(here / "run.json") or {}).get("status") != "done" or not (here / "eval" / "loss.json").exists():
            found.wrong(f"{here}: is not done and evaluated", lost=1)
        elif trace(here) != trace(path):
            found.wrong(f"{here}: another trace", differing=1)
        else:
            if _loss(here) != _loss(path):
                found.wrong(f"{here}: loss {_loss(here)}, not {_loss(path)}", differing=1)
    if not (out / "report" / "index.html").exists():
        found.wrong(f"{out}: has no report", lost=1)
