"""Disks and what lies on them: full, read-only, gone, and checkpoints and corpora that lost or changed something."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.torture.scene import LONG, Found, Scene, copied, newest_whole, resumed_from
from tests.torture.zygote import Child

UNUSED = ("commit_success.txt", "_CHECKPOINT_METADATA")  # of a checkpoint's own folder; nothing is loaded from them


class Cannot(Exception):
    """This kind of fault cannot be made on this machine."""


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Cannot(f"mounting is not allowed here: {done.stderr.strip()}")


@contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    _mount(*arguments, str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


def _begun(scene: Scene, draw: Random, child: Child, workdir: Path) -> None:
    """Waits until a run has a checkpoint, and then a random while."""
    child.until(lambda: newest_whole(workdir) > 0, LONG)
    child.wait(draw.uniform(0.0, 2.0))


def _refused(found: Found, child: Child, words: str) -> None:
    """A process that met a fault ended, with one line that says what it was."""
    last = (child.said().strip().splitlines() or [""])[-1]
    if not child.wait(LONG):
        child.signal(9)
        found.wrong(f"{child.log}: did not end", lost=1)
    elif child.code != 2 or not last.startswith("error: ") or words not in last:
        found.wrong(f"{child.log}: ended with code {child.code} and {last!r}, not {words!r}", lost=1)


def full(scene: Scene, draw: Random, number: int) -> Found:
    """A disk (a tmpfs of 3 MB) that somebody fills while a run trains; space is made, the run goes on."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    disk = place / "disk"
    with _mounted(disk, "-t", "tmpfs", "-o", "size=3m", "none"):
        workdir = disk / "run"
        log = place / "run.log"
        reference = scene.references[flavour]
        child = _on_disk(scene, reference.config, workdir, log)
        child.wait(draw.uniform(0.0, reference.seconds))
        _fill(disk / "fill", draw.choice((0, 0, 4096, 65536)))
        result.injected += 1
        if not child.wait(LONG):
            result.wrong(f"{log}: hangs on a full disk", lost=1)
            child.signal(signal.SIGKILL)
        elif child.code != 0 and "No space left on device" not in child.said():
            result.wrong(f"{log}: does not say that the disk is full: {child.said()[-500:]}", lost=1)
        done, before = child.code == 0, newest_whole(workdir)
        (disk / "fill").unlink()
        child = _on_disk(scene, reference.config, workdir, log)
        said = scene.finish(result, flavour, workdir, child)
        if not done and resumed_from(said) < before:
            result.wrong(f"{log}: step {before} had a checkpoint", lost=1)
        result.resumed += 1
    return result


def _on_disk(scene: Scene, config: dict[str, Any], workdir: Path, log: Path) -> Child:
    given: dict[str, Any] = {"config": config, "workdir": str(workdir)}
    given["digest"] = str(workdir.with_name("run.digest"))
    return scene.zygote.start("train", log, **given)


def _fill(path: Path, left: int) -> None:
    """Fills a disk but for `left` bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - left))


def read_only(scene: Scene, draw: Random, number: int) -> Found:
    """A run that was killed is to go on on a disk that can only be read; then it can be written again."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    disk = place / "disk"
    with _mounted(disk, "-t", "tmpfs", "-o", "size=64m", "none"):
        workdir, log = disk / "run", place / "run.log"
        config = scene.references[flavour].config
        child = _on_disk(scene, config, workdir, log)
        _begun(scene, draw, child, workdir)
        child.signal(signal.SIGKILL)
        child.wait(LONG)
        _mount("-o", "remount,ro", str(disk))
        result.injected += 1
        child = _on_disk(scene, config, workdir, log)
        if child.wait(LONG) and child.code == 0:
            pass  # it was done before
        else:
            _refused(result, child, "Read-only file system")
        _mount("-o", "remount,rw", str(disk))
        scene.finish(result, flavour, workdir, _on_disk(scene, config, workdir, log))
        result.resumed += 1
    return result


def vanished(scene: Scene, draw: Random, number: int) -> Found:
    """A run directory that is moved away while a run trains in it, and comes back; nothing is written in its place."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    workdir, away = place / "run", place / "away"
    config = scene.references[flavour].config
    child = scene.start(config, workdir)
    _begun(scene, draw, child, workdir)
    workdir.rename(away)
    result.injected += 1
    child.wait(LONG)
    if child.code != 0:
        _refused(result, child, "vanished while training in it")
    if workdir.exists():
        result.wrong(f"{workdir}: was made again: {[str(path) for path in workdir.rglob('*')][:5]}", lost=1)
        shutil.rmtree(workdir)
    away.rename(workdir)
    scene.finish(result, flavour, workdir)
    result.resumed += 1
    return result


def unmounted(scene: Scene, draw: Random, number: int) -> Found:
    """The file system of a run directory that goes away while a run trains in it, and comes back."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    disk, real = place / "disk", place / "real"
    real.mkdir()
    config, log = scene.references[flavour].config, place / "run.log"
    with _mounted(disk, "--bind", str(real)):
        child = _on_disk(scene, config, disk / "run", log)
        _begun(scene, draw, child, disk / "run")
    result.injected += 1
    child.wait(LONG)
    if child.code != 0:
        _refused(result, child, "vanished while training in it")
    if any(disk.iterdir()):
        result.wrong(f"{disk}: was written to under the mount: {list(disk.rglob('*'))[:5]}", lost=1)
        shutil.rmtree(disk)
        disk.mkdir()
    _mount("--bind", str(real), str(disk))
    try:
        scene.finish(result, flavour, disk / "run", _on_disk(scene, config, disk / "run", log))
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)
    result.resumed += 1
    return result


def checkpoint(scene: Scene, draw: Random, number: int) -> Found:
    """A file of the newest checkpoint is cut, removed, or has a bit turned; the run goes on from an older one."""
    result, flavour, workdir = Found(), draw.choice(scene.flavours), scene.place(number) / "run"
    child = scene.start(scene.references[flavour].config, workdir)
    _begun(scene, draw, child, workdir)
    child.signal(signal.SIGKILL)
    child.wait(LONG)
    step = newest_whole(workdir)
    if child.code == 0 or not step:
        return result
    folder = workdir / "checkpoints" / str(step)
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    act = draw.choice((cut, remove, flip))
    act(path, draw)
    result.injected += 1
    said = scene.finish(result, flavour, workdir)
    if path.name not in UNUSED and f"the checkpoint of step {step} is damaged" not in said:
        result.wrong(f"{workdir}: {act.__name__} of {path.relative_to(workdir)} was not seen", lost=1)
    result.resumed += 1
    return result


def cut(path: Path, draw: Random) -> None:
    """Cuts a file anywhere."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content)) if content else 0])


def remove(path: Path, draw: Random) -> None:
    """Removes a file."""
    path.unlink()


def flip(path: Path, draw: Random) -> None:
    """Turns one bit of a file."""
    content = bytearray(path.read_bytes())
    if content:
        place = draw.randrange(8 * len(content))
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)


def corpus(scene: Scene, draw: Random, number: int) -> Found:
    """A file of the prepared corpus or of its tokens is cut, removed or has a bit turned; it is prepared anew."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    cache = copied(scene.cache, place / "cache")
    (cache / "compiled").chmod(0o700)
    path = draw.choice(sorted(p for room in ("corpora", "tokens") for p in (cache / room).rglob("[!.]*") if whole(p)))
    act = draw.choice((cut, remove, flip))
    act(path, draw)
    result.injected += 1
    said = scene.finish(result, flavour, place / "run", cache=cache)
    if "is damaged" not in said:
        result.wrong(f"{place}: {act.__name__} of {path} was not seen", lost=1)
    result.resumed += 1
    return result


def whole(path: Path) -> bool:
    """Tells whether a file of a cache is one of those that count: a lock does not, nor does an empty file."""
    return path.is_file() and path.suffix != ".lock" and path.stat().st_size > 0
