"""A sweep directory that came from elsewhere: nothing in it is executed, deleted through, or believed."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from configs.errors import UserError
from sweeps import cancel, launch, status
from sweeps.execution import worker
from sweeps.launchers import registry, slurm
from sweeps.launchers.queues import squeue
from sweeps.launchers.queues.squeue import job_state
from sweeps.store import jobs, run_status, state
from sweeps.store.jobs import Record
from tests.cluster.slurm import require
from tests.sweeps.test_launch import FAKES, run, sweep_of
from tests.sweeps.test_status import run_of

GOOD = Record("slurm", "12_3", "a", 0, "d", "2026-01-01T00:00:00+00:00", "0123456789abcdef")
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A sweep of one arm that is done."""
    folder = tmp_path_factory.mktemp("made")
    assert run(folder, sweep_of(folder, ["a"])).code == 0
    (folder / "out/.sweep/jobs").mkdir()
    return folder / "out"


@pytest.fixture
def foreign(made, tmp_path) -> Path:
    """The sweep as one unpacks it."""
    return shutil.copytree(made, tmp_path / "out", symlinks=True)


def plant(directory: Path, name: str = "a.seed0.json", **values) -> None:
    (directory / ".sweep/jobs" / name).write_text(json.dumps(asdict(GOOD) | values))


@pytest.mark.parametrize("values", [
    {"seed": "0/../../../../victim/important"}, {"seed": "0"}, {"seed": True}, {"seed": 0.0}, {"seed": None},
    {"arm": "../../../victim/important"}, {"arm": None}, {"arm": ["a"]},
    {"id": 4711}, {"id": None}, {"id": ["1"]}, {"id": "--me"}, {"id": "1 2"}, {"id": "1_2_3"},
    {"id": "\u0661"}, {"id": "1\n"},
    {"engine": "ray"}, {"engine": 1}, {"digest": None}, {"submitted": {}}, {"array": "../x"}, {"array": 3}, {"more": 1},
])  # fmt: skip
def test_a_note_of_a_job_that_is_not_as_notes_are_is_none(foreign, values) -> None:
    plant(foreign)
    assert registry.noted(foreign) == [GOOD]
    plant(foreign, **values)
    assert registry.noted(foreign) == []


@pytest.mark.parametrize("text", [DEEP, "7" * 10_000, "[]", "null", '{"engine": "slurm"}', "\0", '{"seed": 1e400}'])
def test_damaged_notes_and_a_damaged_owner_are_no_traceback(foreign, capsys, text) -> None:
    (foreign / ".sweep/jobs/a.seed0.json").write_text(text)
    (foreign / ".sweep/launch.json").write_text(text)
    assert jobs.noted(foreign) == [] and state.launcher(foreign) == ""
    status.main([str(foreign)])
    assert cancel.main([str(foreign)]) == 0


def test_cancelling_deletes_nothing_outside(foreign, tmp_path, monkeypatch) -> None:
    victim = tmp_path / "victim/important.json"
    victim.parent.mkdir()
    victim.write_text("{}")
    monkeypatch.setattr(squeue, "_run", lambda command: "")  # Slurm answers, and knows of no job
    plant(foreign, seed="0/../../../../victim/important", arm="x")
    plant(foreign, name="b.seed0.json", arm="b")
    assert cancel.main([str(foreign)]) == 0
    assert victim.exists() and not (foreign / ".sweep/jobs/b.seed0.json").exists()
    # The same through a link: the notes lie elsewhere.
    (foreign / ".sweep/jobs/a.seed0.json").unlink()
    (foreign / ".sweep/jobs").rmdir()
    (tmp_path / "victim/a.seed0.json").write_text(json.dumps(asdict(GOOD)))
    (foreign / ".sweep/jobs").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="jobs: is a symlink to"):
        cancel.main([str(foreign)])
    with pytest.raises(UserError, match="jobs: is a symlink to"):
        run(tmp_path, sweep_of(tmp_path, ["a"]))
    assert (tmp_path / "victim/a.seed0.json").exists()


def test_a_job_that_is_not_the_sweeps_is_not_cancelled(foreign, monkeypatch) -> None:
    requested = []
    script = {"there": "/home/me/work/train.sh"}
    monkeypatch.setattr(squeue, "_run", lambda command: f"12_3|RUNNING|None|{script['there']}\n")
    slurm = registry.LAUNCHERS["slurm"]
    queue = replace(slurm.queue, cancel=requested.extend)
    monkeypatch.setitem(registry.LAUNCHERS, "slurm", replace(slurm, queue=queue))
    plant(foreign)
    assert cancel.main([str(foreign), "--wait=1s"]) == 0
    assert requested == [] and jobs.noted(foreign) == []
    # The control: one that runs a script of this sweep is.
    script["there"] = str(foreign / ".sweep/slurm/0123456789abcdef/submission_file_1.sh")
    plant(foreign)
    assert cancel.main([str(foreign), "--wait=1s"]) == 1
    assert requested == ["12_3"]


def test_a_job_of_somebody_else_in_a_real_queue_goes_on(foreign) -> None:
    require()
    command = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=sleep 60"]
    own = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        plant(foreign, id=own)
        assert cancel.main([str(foreign), "--wait=1s"]) == 0
        assert squeue.states([own])[own].waits
    finally:
        squeue.cancel([own])


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickles_in_an_unpacked_sweep_are_not_read(foreign, tmp_path, monkeypatch) -> None:
    folder, marker = foreign / ".sweep/slurm", tmp_path / "executed"
    array = folder / GOOD.array
    array.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    for base in (folder, array):
        for name in ("12_3_0_result.pkl", "12_3_submitted.pkl", "12_3_result.json", "jobs.json"):
            (base / name).write_bytes(pickle.dumps(Bomb(marker)))
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()  # the control
    marker.unlink()
    plant(foreign)
    monkeypatch.setattr(squeue, "_run", lambda command: f"12_3|RUNNING|None|{array}/submission_file_1.sh\n")
    engine = slurm.SlurmEngine(foreign, slurm.Options())
    (job,) = [worker.Job(str(foreign), "test", "a", 0, {}, ())]
    assert list(engine.adopt({"a/seed0": job})) == [0]  # Slurm says that it runs
    assert engine.ended(0.0) == []
    (foreign / ".sweep/jobs/a.seed0.json").unlink()
    assert engine._unnoted() == []
    assert not marker.exists()
    # An outcome is read where it is one.
    (array / "12_3_result.json").write_text('{"status": "preempted", "error": "stopped"}')
    (ended,) = engine.ended(0.0)
    assert ended.outcome == worker.Outcome("preempted", "stopped")


@pytest.mark.parametrize("name", ["runs", "runs/a", "runs/a/seed0", "report", ".sweep", ".sweep/locks"])
def test_nothing_is_launched_through_a_link(foreign, tmp_path, name) -> None:
    outside = tmp_path / "outside"
    (foreign / name).rename(outside) if (foreign / name).exists() else outside.mkdir()
    before = sorted(outside.rglob("*"))
    (foreign / name).symlink_to(outside)
    with pytest.raises(UserError, match=rf"{name}: is a symlink to .*outside, outside; refusing to write through it"):
        launch.launch(sweep_of(tmp_path, ["a"]), foreign, functions=FAKES, report=launch.build_report)
    assert sorted(outside.rglob("*")) == before


def test_a_runs_log_is_not_appended_to_through_a_link(foreign, tmp_path) -> None:
    victim, log = tmp_path / "victim", foreign / "runs/a/seed0/log.txt"
    victim.write_text("mine")
    log.unlink()
    log.symlink_to(victim)
    with pytest.raises(UserError, match=r"log.txt: is a symlink to"):
        run(tmp_path, sweep_of(tmp_path, ["a"]))
    with pytest.raises(OSError, match="symbolic links"):
        worker.redirect(log)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("place", ["runs/a/seed0/inner", "runs/b", "report/x", ".sweep/y"])
def test_a_sweep_is_not_begun_within_another(foreign, tmp_path, place) -> None:
    with pytest.raises(UserError, match=r"is inside the (run|sweep) directory"):
        launch.launch(sweep_of(tmp_path, ["b"]), foreign / place, functions=FAKES)
    assert launch.launch(sweep_of(tmp_path, ["b"]), foreign / "beside", functions=FAKES).code == 0


def test_a_dead_run_of_another_host_whose_clock_was_ahead_is_not_running(tmp_path) -> None:
    later = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 86400))
    folder = run_of(tmp_path / "a", host="elsewhere", updated=later)
    old = time.time() - 7200
    os.utime(folder / "metrics.jsonl", (old, old))
    assert run_status.read(folder).status == "preempted"
    os.utime(folder / "metrics.jsonl")  # a line was written now
    assert run_status.read(folder).status == "running"
    soon = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 60))
    assert run_status.read(run_of(tmp_path / "b", host="x", updated=soon)).status == "running"
    assert socket.gethostname() not in ("elsewhere", "x")


def test_status_says_that_slurm_is_silent(foreign, monkeypatch, capsys) -> None:
    plant(foreign)
    monkeypatch.setattr(squeue, "_run", lambda command: None)
    status.main([str(foreign)])
    assert "Slurm does not answer: 1 run given to it is shown by the state of their files" in capsys.readouterr().out
    monkeypatch.setattr(squeue, "_run", lambda command: "")
    status.main([str(foreign)])
    assert "does not answer" not in capsys.readouterr().out


def test_what_steers_a_terminal_is_shown_as_its_code(foreign, capsys) -> None:
    path = foreign / "runs/a/seed0/run.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"status": "failed", "error": "\x1b[2J\u202egnp.exe\x9b"}))
    (foreign / "runs/a/seed0/log.txt").write_text("\x1b]0;owned\x07 line\n")
    status.main([str(foreign)])
    shown = capsys.readouterr().out
    assert not {"\x1b", "\u202e", "\x9b", "\x07"} & set(shown)
    assert r"\x1b[2J\u202egnp.exe\x9b" in shown and r"\x1b]0;owned\x07 line" in shown


def test_word_of_a_job_keeps_its_script() -> None:
    text = "12_3|PENDING|Priority|/a dir/with|bar/x.sh\n"
    assert squeue._parsed(text) == {"12_3": job_state("PENDING", "Priority", "/a dir/with|bar/x.sh")}
