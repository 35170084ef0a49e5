"""Failures, time limits, leases, cancelling, and a machine with several devices: on the local engine."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from configs.errors import UserError
from sweeps import cancel, launch, status
from sweeps.execution import deadline, policy
from sweeps.execution.policy import Policy
from sweeps.launchers import engines, resources
from sweeps.launchers.resources import Machine
from sweeps.spec import expand
from sweeps.store import lease, state
from tests.sweeps import fakes
from tests.sweeps.test_launch import CHECKOUT, FAKES, SLOW, running, sweep_of, until


def run(tmp_path, sweep, workers=2, where=None, **given):
    out = tmp_path / "out"
    return launch.launch(sweep, out, workers=workers, functions=FAKES, policy=Policy(**given), where=where)


def board(tmp_path):
    return {key: stands.status for key, stands in state.run_states(tmp_path / "out").items()}


def test_retries_try_a_failed_run_again_so_often_and_no_more(tmp_path):
    summary = run(tmp_path, sweep_of(tmp_path, ["once", "raise", "evalfail", "a"]), retries=2)
    counts = Counter(fakes.calls(tmp_path / "out"))
    assert counts["train", "once/seed0"] == 2
    assert counts["train", "raise/seed0"] == 3
    assert counts["train", "evalfail/seed0"] == 1 and counts["loss", "evalfail/seed0"] == 3
    assert counts["train", "a/seed0"] == 1
    assert list(summary.failed) == ["raise/seed0"] and list(summary.eval_errors) == ["evalfail/seed0"]
    assert board(tmp_path)["once/seed0"] == "done"


def test_on_failure_stop_begins_no_more_and_lets_the_others_end(tmp_path, capsys):
    sweep = sweep_of(tmp_path, ["raise", "brief", "a", "b"])
    summary = run(tmp_path, sweep, on_failure="stop")
    assert summary.code == 1
    assert board(tmp_path) == {
        "raise/seed0": "failed", "brief/seed0": "done", "a/seed0": "waiting", "b/seed0": "waiting",
    }  # fmt: skip
    message = capsys.readouterr().out
    assert "no more runs start" in message and "2 runs were not started" in message
    assert run(tmp_path, sweep).code == 1  # `raise` again, and now the others
    assert [board(tmp_path)[f"{arm}/seed0"] for arm in ("a", "b")] == ["done", "done"]


def test_a_run_that_takes_too_long_is_saved_counts_as_failed_and_goes_on_when_tried_again(tmp_path):
    summary = run(tmp_path, sweep_of(tmp_path, ["brief", "a"]), timeout=1.0)
    assert summary.failed == {"brief/seed0": "timed out: not finished after 1 s (--run-timeout)"}
    steps = (tmp_path / "out/runs/brief/seed0/steps").read_text().split()
    assert len(steps) == 1 and 0 < int(steps[0]) < 25
    # Two retries of a second each see it through: 25 steps of a tenth.
    assert run(tmp_path, sweep_of(tmp_path, ["brief", "a"]), timeout=1.0, retries=4).code == 0
    steps = list(map(int, (tmp_path / "out/runs/brief/seed0/steps").read_text().split()))
    assert steps == sorted(steps) and steps[-1] == 25 and len(steps) >= 3


def test_a_run_that_does_not_hear_is_ended(tmp_path, monkeypatch):
    code = """
import os, sys, time
sys.path.insert(0, %r)
from sweeps.execution.deadline import Deadline
with Deadline(0.2, saving=0.3):
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code % str(CHECKOUT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == deadline.EXIT and "not saved within 0.3 s" in done.stdout
    assert time.monotonic() - begun < 10


def test_a_deadline_leaves_no_signal_behind():
    before = signal.getsignal(signal.SIGTERM)
    with deadline.Deadline(0.05) as limit, pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    assert limit.passed and signal.getsignal(signal.SIGTERM) == before
    with deadline.Deadline(0.05):
        pass
    time.sleep(0.15)  # a signal now would end the tests


@pytest.mark.parametrize("text, value", [("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_times(text, value):
    assert policy.seconds(text, "--run-timeout") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "2 weeks", "h", "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UserError, match=r"--run-timeout=.*must be a time above 0"):
        policy.seconds(text, "--run-timeout")


@pytest.mark.parametrize("option, message", [
    ("--launcher=sulrm", "must be local or slurm or ray.*slurm"),
    ("--partition=x", "--launcher=local does not take it; it is for slurm"),
    ("--gpus=1", "it is for slurm and ray"),
    ("--on-failure=sometimes", "must be continue or stop"),
    ("--retries=-1", "must be 0 or more"),
    ("--workers=0", "must be 1 or more"),
    ("--run-timeout=soon", "must be a time above 0"),
])  # fmt: skip
def test_an_option_that_means_nothing_is_refused(tmp_path, option, message):
    (tmp_path / "slow.py").write_text(SLOW)
    with pytest.raises(UserError, match=message):
        launch.main([f"--sweep={tmp_path / 'slow.py'}", f"--out={tmp_path / 'out'}", option])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options, message", [
    ({"cpus": "0"}, "--cpus=0: must be a whole number, 1 or more"), ({"gpus": "two"}, "--gpus=two"),
    ({"memory": "lots"}, "--memory=lots"), ({"resource": ["a"]}, "--resource=a: must be NAME=AMOUNT"),
    ({"resource": ["a=b"]}, "--resource=a=b: must be a number"),
])  # fmt: skip
def test_an_engines_option_with_no_meaning_is_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        engines.Where("ray", options).build(tmp_path, None, 1)


# --- who has a run -------------------------------------------------------------------------------------------------

HOLD = "import sys, time; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\nfrom sweeps.store import lease\n"
HOLD += "lease.LEASE = float(sys.argv[3])\nwith lease.hold(Path(sys.argv[2])):\n    print('held', flush=True)\n"
HOLD += "    time.sleep(60)\n"


def holder(path, seconds=2.0):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(CHECKOUT), str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_outlives_no_process(tmp_path):
    process = holder(tmp_path / "lock")
    with pytest.raises(lease.Held), lease.hold(tmp_path / "lock"):
        pass
    process.kill()
    process.communicate()
    begun = time.monotonic()
    with lease.hold(tmp_path / "lock"):
        assert time.monotonic() - begun < 1  # of this host: no lease is waited for


def test_without_locks_of_the_system_the_lease_keeps_others_out_until_it_is_no_longer_touched(tmp_path, monkeypatch):
    """Two hosts that do not see each other's locks: the lease says another host, and the lock file is gone."""
    seconds = 5.0  # a holder that a busy machine keeps from touching it for so long has lost it
    monkeypatch.setattr(lease, "LEASE", seconds)
    process = holder(tmp_path / "lock", seconds)
    (tmp_path / "lock").unlink()  # flock on a new file: the system's lock no longer keeps anybody out
    marker = tmp_path / "lock.lease"
    own = next(line for line in marker.read_text().splitlines() if line.startswith("host="))
    with marker.open("r+") as file:  # in place: the holder goes on touching it
        text = file.read().replace(own, "host=" + "x" * (len(own) - 5))
        file.seek(0)
        file.write(text)
    with pytest.raises(lease.Held), lease.hold(tmp_path / "lock"):
        pass
    begun = time.monotonic()
    process.kill()
    process.communicate()
    with lease.hold(tmp_path / "lock"):
        assert time.monotonic() - begun > seconds / 2  # it cannot know sooner that the other host's process is gone


# --- cancelling, watching ------------------------------------------------------------------------------------------


def test_cancel_has_the_runs_saved_and_the_launcher_end(tmp_path, capsys):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "tests.sweeps.fakes", str(tmp_path / "slow.py"), str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: len(running(tmp_path)) == 2)
        assert cancel.main([str(tmp_path / "out")]) == 0
        message = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 143 and "cancelled; the same command resumes" in message
    assert Counter(board(tmp_path).values()) == {"preempted": 2, "waiting": 1}
    assert "told it to save its runs" in capsys.readouterr().out
    assert cancel.main([str(tmp_path / "out")]) == 0  # nobody is at work
    assert "0 of 3 runs complete; nothing is running" in capsys.readouterr().out
    # The request was for that launcher: the next one goes on.
    quick = replace(FAKES, train="tests.sweeps.fakes:quick")
    sweep = expand.load(tmp_path / "slow.py")
    assert launch.launch(sweep, tmp_path / "out", workers=2, functions=quick).code == 0


def test_cancel_of_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a sweep directory"):
        cancel.main([str(tmp_path)])


def test_status_shows_the_end_of_a_failed_runs_log(tmp_path, capsys):
    run(tmp_path, sweep_of(tmp_path, ["raise", "a"]))
    log = tmp_path / "out/runs/raise/seed0/log.txt"
    log.write_text(log.read_text() + "50%\r99%\r100% \x1b[2J done\n")
    capsys.readouterr()
    assert status.main([str(tmp_path / "out"), "--log=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        f"raise/seed0: the end of {log}:", "    RuntimeError: no such luck", "    second line",
        r"    100% \x1b[2J done",
    ]  # fmt: skip
    assert status.main([str(tmp_path / "out"), "--log=0"]) == 0
    assert "the end of" not in capsys.readouterr().out


def test_watch_follows_a_sweep_to_its_end(tmp_path, capsys):
    sweep = sweep_of(tmp_path, ["brief", "a"])
    state.take_up(tmp_path / "out", sweep, "2026-01-01")
    thread = threading.Thread(target=status.main, args=([str(tmp_path / "out"), "--watch=0.1"],))
    thread.start()
    summary = run(tmp_path, sweep)
    thread.join(120)
    assert summary.code == 0 and not thread.is_alive()
    blocks = capsys.readouterr().out.split("----")
    assert any("brief/seed0  running" in block for block in blocks)
    assert "2 runs: 2 done" in blocks[-1]
    with pytest.raises(UserError, match="--watch=never"):
        status.main([str(tmp_path / "out"), "--watch=never"])


# --- several devices -----------------------------------------------------------------------------------------------


def test_on_a_machine_with_two_gpus_each_worker_sees_one(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "machine", lambda: Machine("gpu", 2, 4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sweep = sweep_of(tmp_path, ["device-a", "device-b", "device-c", "device-d"])
    assert run(tmp_path, sweep, workers=None).code == 0
    seen = {}
    for path in (tmp_path / "out/runs").glob("*/seed0/device"):
        pid, device = path.read_text().split()
        seen.setdefault(pid, set()).add(device)
    assert sorted(map(sorted, seen.values())) == [["0"], ["1"]]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None
