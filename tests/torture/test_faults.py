"""Small versions of the faults that `make torture` puts in, each in this process; what is said, and the same trace."""

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import jax
import pytest

from configs import cli, provenance
from configs.errors import UserError
from eval import run as evaluations
from sweeps.store import run_status, state
from tests.report import synthetic
from tests.torture import sweeps
from tests.torture.children import _lose_device
from tests.torture.scene import Found
from tests.torture.test_checkpoints import flip
from tests.training.test_trainer import trace
from training.loop import after_step, trainer
from training.loop.metrics import MetricsLog
from training.run_directory import record
from training.run_directory.checkpoint import Checkpoints
from training.run_directory.files import read_json, write_json
from training.step import train_step


@pytest.fixture
def disk(tmp_path):
    """A file system of its own of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_run_with_a_word_and_the_run_goes_on_when_there_is_space(make_tiny, half, whole, disk):
    workdir = Path(shutil.copytree(half, disk / "run"))
    with (disk / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    with pytest.raises(
        UserError, match=r"disk/run.*: No space left on device; free some space, run the same command again"
    ):
        trainer.train(make_tiny(), workdir, quiet=True)
    (disk / "fill").unlink()
    assert trainer.train(make_tiny(), workdir, quiet=True)["status"] == "done" and trace(workdir) == trace(whole)


def test_a_disk_that_can_only_be_read_is_told_and_nothing_is_lost(make_tiny, half, whole, disk):
    workdir = Path(shutil.copytree(half, disk / "run"))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for folder in (workdir, disk / "new"):
        with pytest.raises(UserError, match=r"Read-only file system; make it writable, run the same command again"):
            trainer.train(make_tiny(), folder, quiet=True)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert trainer.train(make_tiny(), workdir, quiet=True)["status"] == "done" and trace(workdir) == trace(whole)


def test_commands_tell_a_full_disk_in_a_line_and_a_launcher_goes_on(disk, capfd) -> None:
    with pytest.raises(OSError, match="No space left"):
        (disk / "fill").write_bytes(bytes(1 << 22))
    state.mark(disk / "run", status="failed", error="it")
    assert "cannot be written (No space left on device): {'status': 'failed', 'error': 'it'}" in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(lambda _: write_json(disk / "a.json", ["x" * 8192]))
    message = capfd.readouterr().err
    assert (
        ended.value.code == 2 and message.startswith("error: ") and "No space left on device; nothing more" in message
    )
    with pytest.raises(FileNotFoundError):  # a mistake of the program is not dressed up
        cli.main(lambda _: (disk / "none").read_text() and None)


@pytest.mark.parametrize("way", ["moved", "removed"])
def test_a_directory_that_vanishes_is_not_made_anew(make_tiny, half, whole, monkeypatch, way) -> None:
    original, away = after_step.spend, half.with_name("away")

    def spend(run, tokens: int, seconds: float) -> None:
        original(run, tokens, seconds)
        if run.state.spent.steps == 10:
            half.rename(away) if way == "moved" else shutil.rmtree(half)

    with monkeypatch.context() as patch:
        patch.setattr(after_step, "spend", spend)
        with pytest.raises(UserError, match="vanished while training in it"):
            trainer.train(make_tiny(), half, quiet=True)
    assert not half.exists()
    if way == "moved":
        away.rename(half)
        assert trainer.train(make_tiny(), half, quiet=True)["status"] == "done" and trace(half) == trace(whole)


def test_a_checkpoint_begun_in_the_very_moment_is_not_kept(make_tiny, half, monkeypatch) -> None:
    def save(self, *given) -> None:
        half.rename(half.with_name("away"))
        original(self, *given)

    original = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(UserError, match="vanished while training in it"):
        trainer.train(make_tiny(), half, quiet=True)
    assert not half.exists()


def test_nor_what_is_written_of_it_after_its_failure_was_told(make_tiny, half, monkeypatch) -> None:
    """One part of the checkpoint fails, the threads of another go on and make the folders that they miss."""

    def late() -> None:
        for name in ("params", "opt_state"):
            time.sleep(0.3)
            folder = half / "checkpoints/20.orbax-checkpoint-tmp" / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "_METADATA").write_text("{}")
            (half / "run.json").write_text(json.dumps({"pid": os.getpid()}))

    def close(self) -> None:
        original(self)
        half.rename(half.with_name("away"))
        writing.start()
        raise ValueError("NOT_FOUND: what TensorStore says")

    original, writing = Checkpoints.close, threading.Thread(target=late)
    monkeypatch.setattr(Checkpoints, "close", close)
    with pytest.raises(UserError, match="vanished while training in it"):
        trainer.train(make_tiny(), half, quiet=True)
    writing.join()
    assert not half.exists()


def test_nor_is_its_run_json_written_in_its_place(make_tiny, half, whole, monkeypatch) -> None:
    """The directory goes between the last look at it and the last line about it."""
    original, away = record.Record.update, half.with_name("away")

    def update(self, **values) -> None:
        if values.get("status") == "done":
            half.rename(away)
        original(self, **values)

    with monkeypatch.context() as patch:
        patch.setattr(record.Record, "update", update)
        with pytest.raises(UserError, match="vanished while training in it"):
            trainer.train(make_tiny(), half, quiet=True)
    assert not half.exists()
    away.rename(half)
    assert trainer.train(make_tiny(), half, quiet=True)["status"] == "done" and trace(half) == trace(whole)


def test_whatever_fails_first_where_a_directory_vanished_it_is_told_that_it_did(make_tiny, half, monkeypatch) -> None:
    def write(self, line) -> None:
        half.rename(half.with_name("away"))
        raise ValueError("NOT_FOUND: what TensorStore says")

    monkeypatch.setattr(MetricsLog, "write", write)
    with pytest.raises(UserError, match="vanished while training in it"):
        trainer.train(make_tiny(), half, quiet=True)
    assert not half.exists()


def test_a_lost_device_ends_the_run_as_failed_with_the_reason(make_tiny, half, whole, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(train_step, "compiled", train_step.compiled)  # so that it is put back
        _lose_device(3)
        with pytest.raises(UserError, match="the device failed: UNAVAILABLE: the device is lost") as message:
            trainer.train(make_tiny(), half, quiet=True)
    assert isinstance(message.value.__cause__, jax.errors.JaxRuntimeError)
    written = read_json(half / "run.json")
    assert written["status"] == "failed" and "run the same command again to resume" in written["error"]
    assert trainer.train(make_tiny(), half, quiet=True)["status"] == "done" and trace(half) == trace(whole)


def test_a_clock_that_jumps_changes_nothing_that_is_measured_in_seconds(make_tiny, half, whole, monkeypatch) -> None:
    real, original, wrong = time.time, after_step.spend, [0.0]

    def spend(run, tokens: int, seconds: float) -> None:
        original(run, tokens, seconds)
        wrong[0] = (-1) ** run.state.spent.steps * 86_400.0

    monkeypatch.setattr(after_step, "spend", spend)
    monkeypatch.setattr(time, "time", lambda: real() + wrong[0])
    monkeypatch.setattr(record, "now", lambda: "1999-12-31T23:59:59+00:00")
    result = trainer.train(make_tiny(), half, quiet=True)
    assert result["status"] == "done" and trace(half) == trace(whole)
    assert all(0 <= value < 3600 for value in result["wall_time"].values())


def test_a_process_is_known_again_though_the_clock_has_jumped(half) -> None:
    run = read_json(half / "run.json")
    assert run_status.alive(run | {"updated": "1999-12-31T23:59:59+00:00"}, half)  # it is this very process
    assert not run_status.alive(run | {"pid_began": run["pid_began"] + 1.0}, half)
    without = {name: value for name, value in run.items() if name != "pid_began"}
    assert run_status.alive(without, half)  # of an earlier version: by its file's time
    assert not run_status.alive(without | {"updated": "1999-12-31T23:59:59+00:00"}, half)
    write_json(half / "run.json", run | {"status": "running", "pid": 2**22 + 1, "host": os.uname().nodename})
    assert run_status.read(half).note == "its process ended"


def test_a_turned_bit_in_the_cache_is_seen_and_the_entry_prepared_anew(make_tiny, whole, tmp_path, capsys) -> None:
    config = make_tiny(data__cache_dir=str(tmp_path / "cache"))
    trainer.train(config, tmp_path / "first", quiet=True)
    for name in ("*/*.tokens", "*/*/*/*train*array_record*"):
        path = next((tmp_path / "cache").rglob(name))
        before = path.read_bytes()
        flip(path, 4 * len(before) + 3)
        os.utime(path.parents[0 if "tokens" in name else 2] / "complete.json")  # as for another process
        trainer.train(config, tmp_path / path.name, quiet=True)
        assert f"is damaged ({path.name}" in capsys.readouterr().err.replace("ablax_text/1.0.0/", "")
        assert path.read_bytes() == before or "array" in name  # TFDS writes something of its own into a file
        assert trace(tmp_path / path.name) == trace(tmp_path / "first") == trace(whole)


def test_a_corpus_that_changed_is_refused_and_the_run_goes_on_when_it_is_put_back(make_tiny, half, whole, text) -> None:
    path, before = Path(text), Path(text).read_text()
    at = read_json(half / "run.json"), trace(half)
    try:
        for change in sweeps.CHANGES.values():
            path.write_text(change(before))
            with pytest.raises(UserError, match="was trained on other data"):
                trainer.train(make_tiny(), half, quiet=True)
            with pytest.raises(UserError, match="was trained on other data"):
                evaluations.evaluate(half, ["loss"])
            assert (read_json(half / "run.json"), trace(half)) == at and not (half / "eval/loss.json").exists()
    finally:
        path.write_text(before)
    assert trainer.train(make_tiny(), half, quiet=True)["status"] == "done" and trace(half) == trace(whole)


def test_an_evaluation_of_an_earlier_step_is_not_the_finished_runs(make_tiny, half, whole, tmp_path) -> None:
    early = evaluations.evaluate(half, ["loss"])["loss"]
    assert provenance.problem(half, "loss") == ""
    assert trainer.train(make_tiny(), half, quiet=True)["status"] == "done"
    assert provenance.problem(half, "loss") == "loss.json is of step 8, the run is at step 12"
    assert run_status.read(half, ["loss"]).missing == ("loss",)
    again = evaluations.evaluate(half, ["loss"])["loss"]["loss"]
    shutil.copytree(whole, tmp_path / "whole")
    assert again == evaluations.evaluate(tmp_path / "whole", ["loss"])["loss"]["loss"] != early["loss"]
    assert run_status.read(half, ["loss"]).complete


def named(folder: Path, run: Path, whole: Path) -> int:
    result = Found()
    sweeps._named(result, folder / run, [folder / whole])
    return result.differing


def test_a_number_of_other_data_or_another_number_of_these_would_be_seen(tmp_path) -> None:
    def sweep(name: str, loss: float, fingerprint: str, eval_step: int = 1000) -> str:
        info = synthetic.run_json()
        info["data"]["fingerprint"] = fingerprint
        evals = {"loss": synthetic.loss_json(loss) | {"step": eval_step}}
        synthetic.write_run(tmp_path / name / "runs/a/seed0", info=info, evals=evals)
        return name

    whole = sweep("whole", 1.5, "f" * 32)
    assert named(tmp_path, sweep("same", 1.5, "f" * 32), whole) == 0
    assert named(tmp_path, sweep("other", 1.25, "f" * 32), whole) == 1
    assert named(tmp_path, sweep("unknown data", 1.5, "e" * 32), whole) == 1
    assert named(tmp_path, sweep("of another step, and known to be", 1.25, "f" * 32, eval_step=9), whole) == 0
