"""How runs stand, from hand-made run directories; the command's lines; no JAX."""

import datetime
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sweeps import display, status
from sweeps.spec import expand
from sweeps.store import run_status, state
from sweeps.store.run_status import RunState, now

CHECKOUT = Path(__file__).resolve().parents[2]
BUDGET = {"kind": "steps", "amount": 100.0}


def run_of(folder, metrics=(), evals=(), **values):
    """Writes a run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {"status": "running", "host": socket.gethostname(), "pid": os.getpid(), "updated": now(), "budget": BUDGET}
    (folder / "run.json").write_text(json.dumps(run | values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "eval").mkdir(exist_ok=True)
    for name in evals:
        (folder / "eval" / f"{name}.json").write_text("{}")
    return folder


def ago(seconds):
    return (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)).isoformat()


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_without_files_waits(tmp_path):
    assert run_status.read(tmp_path / "none", ["loss"], 50) == RunState("waiting", total=50, missing=("loss",))


def test_a_running_run_tells_step_loss_speed_and_time_left(tmp_path):
    metrics = [
        {"step": 10, "tokens": 10_000, "train_loss": 3.0, "tokens_per_second": 1.0},
        {"step": 20, "tokens": 12_000, "train_loss": 2.5, "tokens_per_second": 400.0, "val_loss": 2.6},
    ]
    stands = run_status.read(run_of(tmp_path / "a", metrics))
    assert (stands.status, stands.step, stands.total, stands.train_loss, stands.val_loss) == (
        "running",
        20,
        100,
        2.5,
        2.6,
    )
    # 80 steps of 200 tokens, the newest stage's, at 400 tokens/s.
    assert stands.seconds_left == pytest.approx(40)


@pytest.mark.parametrize("budget, left, total", [
    ({"kind": "tokens", "amount": 40_000}, 30_000 / 400, 80),
    ({"kind": "flops", "amount": 4e9}, 30_000 / 400, 80),
    ({"kind": "seconds", "amount": 60.0}, 45, 80),
])  # fmt: skip
def test_time_left_of_every_kind_of_budget(tmp_path, budget, left, total):
    line = {"step": 20, "tokens": 10_000, "flops": 1e9, "tokens_per_second": 400.0}
    stands = run_status.read(run_of(tmp_path / "a", [line], budget=budget, wall_time={"train": 15.0}))
    assert stands.seconds_left == pytest.approx(left)
    assert (stands.total, stands.about) == (total, True)


def test_a_run_whose_process_ended_is_not_running(tmp_path):
    stands = run_status.read(run_of(tmp_path / "a", pid=dead_pid()))
    assert (stands.status, stands.note) == ("preempted", "its process ended")


def test_a_process_younger_than_the_run_is_another_one(tmp_path):
    assert run_status.read(run_of(tmp_path / "a", updated="2020-01-01T00:00:00+00:00")).status == "preempted"


def test_on_another_host_signs_of_life_decide(tmp_path):
    fresh = run_of(tmp_path / "a", host="elsewhere", updated=ago(60))
    stale = run_of(tmp_path / "b", host="elsewhere", updated=ago(3600))
    os.utime(stale / "metrics.jsonl", (0, 0))
    assert run_status.read(fresh).status == "running"
    assert run_status.read(stale).status == "preempted"
    os.utime(stale / "metrics.jsonl")  # metrics are written more often than run.json
    assert run_status.read(stale).status == "running"


def test_evaluations_that_are_missing_or_failed_are_told(tmp_path):
    folder = run_of(tmp_path / "a", evals=["loss"], status="done", eval_errors={"memory": "Trace\nValueError: x"})
    stands = run_status.read(folder, ["loss", "memory", "throughput"])
    assert (stands.status, stands.missing, stands.complete) == ("done", ("throughput",), False)
    assert stands.note == "not yet evaluated: throughput; evaluation memory failed: ValueError: x"
    run_of(tmp_path / "a", evals=["memory", "throughput"], status="done", eval_errors={"memory": "old"})
    assert run_status.read(folder, ["loss", "memory", "throughput"]).complete


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "strange"}', "\xff"])
def test_a_damaged_run_is_told_and_stops_nothing(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    stands = run_status.read(tmp_path)
    assert stands.status == "failed" and stands.error


def test_only_whole_lines_of_long_metrics_are_read(tmp_path):
    lines = [json.dumps({"step": i, "pad": "x" * 50}) for i in range(5000)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n" + lines[0][:20])
    result = run_status.last_lines(path)
    assert result[-1]["step"] == 4999
    assert [line["step"] for line in result] == list(range(result[0]["step"], 5000))


@pytest.fixture
def directory(tmp_path):
    """A sweep directory with a run of every status."""
    given = dict(
        name="s", base="configs/tiny.py", fixed={"budget.amount": 100}, axes=[{"model.num_heads": [1, 2]}],
        arm="h{model.num_heads}", seeds=[0, 1, 2],
    )  # fmt: skip
    state.take_up(tmp_path, expand.expand(given, file=Path("s.py")), now())
    h1, h2 = tmp_path / "runs/h1", tmp_path / "runs/h2"
    run_of(h1 / "seed0", evals=["loss"], status="done", step=100, train_loss=1.25, val_loss=1.5, wall_time={"total": 9})
    run_of(h1 / "seed1", [{"step": 50, "tokens": 500, "train_loss": 2.0, "tokens_per_second": 100.0}])
    run_of(h1 / "seed2", status="failed", error="Traceback\n  somewhere\nValueError: [red]bad[/red]\n", step=3)
    run_of(h2 / "seed0", status="diverged", error="the training loss became nan at step 7", step=7)
    run_of(h2 / "seed1", status="preempted", step=40)
    run_of(tmp_path / "runs/old/seed0", status="done")
    return tmp_path


def test_a_line_per_run_then_the_counts(directory, capsys):
    assert status.main([str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "step", "loss", "val", "loss", "tokens/s", "left"]
    assert [line.split()[:3] for line in lines[1:6]] == [
        ["h1/seed0", "done", "100/100"],
        ["h1/seed1", "running", "50/100"],
        ["h1/seed2", "failed", "3/100"],
        ["h2/seed0", "diverged", "7/100"],
        ["h2/seed1", "preempted", "40/100"],
    ]
    assert lines[6].split() == ["h2/seed2", "waiting", "0/100"]
    assert "1.2500" in lines[1] and "1.5000" in lines[1]
    assert "2.0000" in lines[2] and "5 s" in lines[2]
    assert lines[3].endswith("ValueError: [red]bad[/red]")
    assert lines[4].endswith("the training loss became nan at step 7")
    assert lines[8].startswith("6 runs: 1 done, 1 running, 1 preempted, 1 failed, 1 diverged, 1 waiting")
    # Two runs of 9 s and 5 s of the one at work, one worker.
    assert lines[8].endswith("about 23 s left")
    assert lines[9] == "no longer in the sweep file: old/seed0"


def test_status_works_without_jax(directory):
    code = (
        f"import sys\nsys.modules['jax'] = None\nfrom sweeps import status\nsys.exit(status.main([{str(directory)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_no_sweep_is_refused_with_one_line(tmp_path):
    for folder, message in ((tmp_path, "no sweep.json"), (tmp_path / "none", "no such folder")):
        command = [sys.executable, "-m", "sweeps.status", str(folder)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_live_table_shows_what_needs_attention_first():
    board = {f"a/seed{i}": RunState("waiting") for i in range(50)}
    board["a/seed30"] = RunState("running", step=3, total=9)
    board["a/seed40"] = RunState("failed", error="ValueError: [bold]x")
    console = Console(width=100, height=16, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(display.table(board, {"a/seed45": "evaluating loss"}, 16))
    lines = shown.get().splitlines()
    assert len(lines) <= 16
    text = "\n".join(lines)
    assert "ValueError: [bold]x" in text and "evaluating loss" in text and "3/9" in text
    assert "... and 41 more" in text and "50 runs" in text


def test_plain_lines_tell_changes_once(capsys):
    lines = display.Lines(every=1e9)
    lines.update({"a": RunState("done"), "b": RunState("waiting")}, {"b": "starting"})
    lines.update({"a": RunState("done"), "b": RunState("running", step=1, total=2)}, {"b": "running"})
    lines.update({"a": RunState("done"), "b": RunState("running", step=2, total=2)}, {"b": "running"})
    lines.update({"a": RunState("done"), "b": RunState("done", step=2, total=2, val_loss=0.5)}, {})
    messages = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert messages == [
        "b: starting", "2 runs: 1 done, 1 waiting", "b: running  step 1/2", "b: done  step 2/2  val loss 0.5000",
    ]  # fmt: skip
    lines.update({"a": RunState("done"), "b": RunState("waiting")}, {"b": "queued (Priority)"})
    lines.update({"a": RunState("done"), "b": RunState("waiting")}, {"b": "queued (Resources)"})
    assert len(capsys.readouterr().out.splitlines()) == 1
    lines.every = 0.0
    lines.update({"a": RunState("done"), "b": RunState("done")}, {})
    assert "2 runs: 2 done" in capsys.readouterr().out


def test_what_is_queued_is_no_worker_in_the_time_left():
    board = {f"a/seed{i}": RunState("done", seconds=10.0) for i in range(2)}
    board |= {f"b/seed{i}": RunState("waiting") for i in range(6)}
    board["c/seed0"] = RunState("running", seconds_left=4.0)
    phases = {key: "queued (Priority)" for key in board if key.startswith("b")} | {"c/seed0": "running"}
    assert display.summary(board, phases).endswith("about 1 min 4 s left")  # six runs of 10 s after one of 4 s
