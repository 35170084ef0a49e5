"""Second processes, data workers, devices and clocks."""

import os
import signal
from random import Random
from typing import Any

import psutil

from tests.torture.scene import LONG, Found, Scene, as_json, newest_whole
from tests.torture.zygote import Child


def second_process(scene: Scene, draw: Random, number: int) -> Found:
    """A second process is started on a run directory at a random moment; it is refused, the first one ends well."""
    result, flavour, place = Found(), draw.choice(scene.flavours), scene.place(number)
    workdir, config = place / "run", scene.references[flavour].config
    first = scene.start(config, workdir)
    first.wait(draw.uniform(0.3, scene.references[flavour].seconds))
    given: dict[str, Any] = {"config": config, "workdir": str(workdir)}
    second = scene.zygote.start("train", place / "second.log", **given)
    second.wait(LONG)
    if second.code == 2 and "another process is training there" in second.said():
        result.injected += 1
    elif second.code != 0 or not first.wait(1.0):
        result.wrong(f"{place}: the second process ended with {second.code}: {second.said()[-300:]}", lost=1)
    scene.finish(result, flavour, workdir, first)
    result.resumed = result.injected
    return result


def _workers(child: Child) -> list[psutil.Process]:
    try:
        below = psutil.Process(child.pid).children(recursive=True)
        return [process for process in below if "spawn_main" in " ".join(process.cmdline())]
    except psutil.Error:
        return []


def _data_worker(scene: Scene, draw: Random, number: int, signals: int, words: str) -> Found:
    result, flavour, workdir = Found(), draw.choice(scene.flavours), scene.place(number) / "run"
    child = scene.start(scene.config(flavour, data__workers=1), workdir, patience=20.0)
    child.until(lambda: newest_whole(workdir) > 0, LONG)
    child.wait(draw.uniform(0.0, 0.3))
    for process in _workers(child):
        try:
            os.kill(process.pid, signals)
        except ProcessLookupError:
            continue
        result.injected += 1
    said = scene.finish(result, flavour, workdir, child)
    if result.injected and words not in said and "died" not in said:  # or all its batches had been taken
        result.notes.append(f"{workdir}: ended without need of its worker")
    result.resumed = result.injected
    return result


def data_worker_killed(scene: Scene, draw: Random, number: int) -> Found:
    """SIGKILL to the process that prepares batches; the run itself goes on."""
    return _data_worker(scene, draw, number, signal.SIGKILL, "died")


def data_worker_hangs(scene: Scene, draw: Random, number: int) -> Found:
    """SIGSTOP to the process that prepares batches; the run itself goes on."""
    return _data_worker(scene, draw, number, signal.SIGSTOP, "produced no batch")


def device_lost(scene: Scene, draw: Random, number: int) -> Found:
    """A step that raises as JAX does when a device is lost; the run ends with a reason, and goes on when started."""
    result, flavour, workdir = Found(), draw.choice(scene.flavours), scene.place(number) / "run"
    config = scene.references[flavour].config
    for _ in range(draw.randint(1, 2)):
        child = scene.start(config, workdir, lose_device_at=draw.randint(1, scene.steps // 2))
        child.wait(LONG)
        if child.code == 0:
            break
        result.injected += 1
        record = as_json(workdir / "run.json") or {}
        if child.code != 2 or record.get("status") != "failed" or "the device failed" not in str(record.get("error")):
            result.wrong(f"{workdir}: code {child.code}, {record.get('status')}: {record.get('error')}", lost=1)
    scene.finish(result, flavour, workdir)
    result.resumed = result.injected
    return result


def clock(scene: Scene, draw: Random, number: int) -> Found:
    """The clock of a run jumps back and forth by up to two days; it is killed once, and goes on with another clock."""
    result, flavour, workdir = Found(), draw.choice(scene.flavours), scene.place(number) / "run"
    seconds = scene.references[flavour].seconds
    for last in (False, True):
        jumps = [[draw.uniform(0.0, seconds), draw.choice((-1, 1)) * draw.uniform(1.0, 172_800)] for _ in range(3)]
        child = scene.start(scene.references[flavour].config, workdir, clock=jumps)
        result.injected += len(jumps)
        if not last:
            child.wait(draw.uniform(0.0, seconds))
            child.signal(signal.SIGKILL)
            child.wait(LONG)
    if child.wait(LONG) and child.code == 2 and "the clock may have been set forward" in child.said():
        child = scene.start(scene.references[flavour].config, workdir)
    scene.finish(result, flavour, workdir, child)
    times = (as_json(workdir / "run.json") or {}).get("wall_time", {})
    if not all(0 <= value < LONG for value in times.values()):
        result.wrong(f"{workdir}: wall time {times}", lost=1)
    result.resumed = result.injected
    return result
