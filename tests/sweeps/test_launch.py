"""The launcher: every run once, a failing one alone, resumed where it stopped, never over something else."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from configs import fields
from configs.errors import ConfigError, UserError
from sweeps import launch
from sweeps.execution import worker
from sweeps.execution.driver import Functions
from sweeps.execution.policy import Policy
from sweeps.execution.waiting import Waiting
from sweeps.spec import expand
from sweeps.spec.sweep import Study, Sweep
from sweeps.store import state
from tests.sweeps import fakes
from training.run_directory.files import write_json

FAKES = Functions("tests.sweeps.fakes:train", "tests.sweeps.fakes:evaluate")
CHECKOUT = Path(__file__).resolve().parents[2]


def sweep_of(tmp_path, arms, seeds=(0,), evals=("loss",), **fixed):
    """A sweep whose arms have these names; each has its own learning rate, so that they differ."""
    rates = {1e-3 * (i + 1): name for i, name in enumerate(arms)}
    given = dict(
        name="test",
        base="configs/tiny.py",
        fixed=fixed,
        axes=[{"optimizer.learning_rate": list(rates)}],
        arm=lambda c: rates[c.optimizer.learning_rate],
        seeds=list(seeds),
        evals=list(evals),
    )
    return expand.expand(given, file=tmp_path / "test.py")


def run(tmp_path, sweep, functions=FAKES, workers=2):
    return launch.launch(sweep, tmp_path / "out", workers=workers, functions=functions)


def status(tmp_path, key):
    return state.run_states(tmp_path / "out")[key]


def test_every_run_is_trained_and_evaluated_once_by_workers_that_stay_up(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "b", "c"], seeds=(0, 1), evals=("loss", "memory"))
    assert run(tmp_path, sweep).code == 0
    expected = {(what, r.key): 1 for r in sweep.runs() for what in ("train", "loss", "memory")}
    assert Counter(fakes.calls(tmp_path / "out")) == expected
    assert len(fakes.pids(tmp_path / "out")) <= 2
    assert {s.status for s in state.run_states(tmp_path / "out").values()} == {"done"}
    assert all(s.complete for s in state.run_states(tmp_path / "out").values())
    assert "training a" in (tmp_path / "out/runs/a/seed0/log.txt").read_text()
    assert json.loads((tmp_path / "out/runs/b/seed1/config.json").read_text())["seed"] == 1


def test_a_second_launch_does_nothing_again(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "diverge"])
    assert run(tmp_path, sweep).code == 0
    files = {p: p.read_bytes() for p in (tmp_path / "out/runs").rglob("*") if p.is_file()}
    before = fakes.calls(tmp_path / "out")
    summary = run(tmp_path, sweep)
    assert fakes.calls(tmp_path / "out") == before
    # Not even a job was sent: a worker would have said so in the run's log.
    assert {p: p.read_bytes() for p in (tmp_path / "out/runs").rglob("*") if p.is_file()} == files
    assert list(summary.diverged) == ["diverge/seed0"]


@pytest.mark.parametrize("way, message", [
    ("raise", "RuntimeError: no such luck"),
    ("exit", "exited with code 3"),
    ("zero", "exited with code 0"),
    ("kill", "killed by SIGKILL"),
])  # fmt: skip
def test_a_failing_run_fails_alone(tmp_path, way, message, capsys):
    sweep = sweep_of(tmp_path, [way, "a", "b", "c"])
    summary = run(tmp_path, sweep, workers=1)
    assert summary.code == 1
    assert list(summary.failed) == [f"{way}/seed0"]
    assert message in summary.failed[f"{way}/seed0"]
    board = state.run_states(tmp_path / "out")
    assert [board[f"{name}/seed0"].status for name in (way, "a", "b", "c")] == ["failed", "done", "done", "done"]
    assert message in capsys.readouterr().out
    assert Counter(fakes.calls(tmp_path / "out"))["train", f"{way}/seed0"] == 1


def test_a_failed_run_is_tried_again_by_the_next_launch_only(tmp_path):
    sweep = sweep_of(tmp_path, ["once", "a"])
    assert run(tmp_path, sweep).code == 1
    assert run(tmp_path, sweep).code == 0
    assert Counter(fakes.calls(tmp_path / "out")) == {
        ("train", "once/seed0"): 2, ("loss", "once/seed0"): 1, ("train", "a/seed0"): 1, ("loss", "a/seed0"): 1,
    }  # fmt: skip


def test_nothing_is_written_in_the_place_of_a_run_that_was_moved_away_and_it_goes_on_when_moved_back(tmp_path):
    sweep, folder = sweep_of(tmp_path, ["gone", "a"]), tmp_path / "out/runs/gone/seed0"
    policy = Policy(retries=1)
    summary = launch.launch(sweep, tmp_path / "out", workers=1, functions=FAKES, policy=policy)
    assert summary.code == 1 and "vanished" in summary.failed["gone/seed0"]
    assert not folder.exists() and Counter(fakes.calls(tmp_path / "out"))["train", "gone/seed0"] == 1
    message = status(tmp_path, "gone/seed0")
    assert message.status == "failed" and message.error_line == "RuntimeError: vanished"
    record = tmp_path / "out/.sweep/missing/gone.seed0"
    record.rename(tmp_path / "other")
    record.symlink_to(tmp_path / "other")
    assert status(tmp_path, "gone/seed0").status == "waiting", "what a link leads to is not shown"
    (tmp_path / "out/away/back").touch()
    subprocess.run(["mv", tmp_path / "out/away", folder], check=True)
    assert run(tmp_path, sweep).code == 0 and (folder / "back").exists()
    assert status(tmp_path, "gone/seed0").complete


def test_a_run_directory_inside_another_is_named_and_not_trained_over(tmp_path):
    sweep, folder = sweep_of(tmp_path, ["a"]), tmp_path / "out/runs/a/seed0"
    (folder / "away/checkpoints").mkdir(parents=True)
    (folder / "away/config.json").write_text("{}")
    summary = run(tmp_path, sweep)
    assert summary.code == 1 and f"{folder}/away: is a run directory inside" in summary.failed["a/seed0"]
    assert fakes.calls(tmp_path / "out") == []
    shutil.rmtree(folder / "away")
    assert run(tmp_path, sweep).code == 0


def chained(tmp_path, before, seeds=(0, 1)):
    """A sweep of the arm `before`, of `after` that continues it, and of `last` that continues `after`; last first."""
    sources = {"last": "arm:after", "after": f"arm:{before}", before: ""}
    given = dict(
        name="test",
        base="configs/tiny.py",
        axes=[{"zip": [{"init_from": list(sources.values())}, {"optimizer.learning_rate": [1e-3, 2e-3, 3e-3]}]}],
        arm=lambda c: next(name for name, source in sources.items() if source == c.init_from),
        seeds=list(seeds),
    )
    return expand.expand(given, file=tmp_path / "test.py")


def test_a_run_that_continues_another_begins_when_that_is_done(tmp_path):
    sweep = chained(tmp_path, "a")
    assert run(tmp_path, sweep, workers=2).code == 0
    trained = [key for what, key in fakes.calls(tmp_path / "out") if what == "train"]
    assert sorted(trained) == sorted(r.key for r in sweep.runs())
    for seed in (0, 1):
        order = [trained.index(f"{arm}/seed{seed}") for arm in ("a", "after", "last")]
        assert order == sorted(order)
        config = json.loads((tmp_path / f"out/runs/last/seed{seed}/config.json").read_text())
        assert config["init_from"] == str(tmp_path / f"out/runs/after/seed{seed}")
    # Nothing is done again, nor is anything refused, where the sweep has moved.
    (tmp_path / "out").rename(tmp_path / "moved")
    before = fakes.calls(tmp_path / "moved")
    assert launch.launch(sweep, tmp_path / "moved", workers=1, functions=FAKES).code == 0
    assert fakes.calls(tmp_path / "moved") == before
    other = chained(tmp_path, "b")
    with pytest.raises(ConfigError, match=r"runs/after .*init_from was .*now 'arm:b'"):
        launch.launch(other, tmp_path / "moved", workers=1, functions=FAKES)


@pytest.mark.parametrize("way, status", [("raise", "failed"), ("diverge", "diverged")])
def test_what_continues_a_run_that_failed_is_not_begun_and_is_named(tmp_path, way, status):
    summary = run(tmp_path, chained(tmp_path, way, seeds=[0]), workers=1)
    messages = {**summary.failed, **summary.diverged}
    assert summary.code == (1 if way == "raise" else 0)
    for arm in ("after", "last"):
        assert messages[f"{arm}/seed0"] == f"not started: {way}/seed0, which it continues, is {status}"
        assert not (tmp_path / f"out/runs/{arm}").exists()


def test_a_diverged_run_is_named_and_is_no_failure(tmp_path, capsys):
    summary = run(tmp_path, sweep_of(tmp_path, ["diverge", "a"]))
    assert summary.code == 0
    assert "diverged: diverge/seed0: the loss is nan" in capsys.readouterr().out
    assert status(tmp_path, "a/seed0").status == "done"


@pytest.mark.parametrize("way, message", [("evalfail", "ValueError: cannot be measured"), ("evalkill", "SIGKILL")])
def test_a_failing_evaluation_leaves_the_run_done_and_the_others_made(tmp_path, way, message):
    sweep = sweep_of(tmp_path, [way, "a"], evals=("loss", "memory"))
    summary = run(tmp_path, sweep)
    assert summary.code == 1 and not summary.failed
    stands = status(tmp_path, f"{way}/seed0")
    assert stands.status == "done" and not stands.complete
    assert message in stands.eval_errors["loss"]
    assert (tmp_path / f"out/runs/{way}/seed0/eval/memory.json").exists() == (way == "evalfail")
    # Tried again and failing again, it is the same evaluation that is named.
    assert list(run(tmp_path, sweep).eval_errors[f"{way}/seed0"]) == ["loss"]
    # Mended, it is evaluated by the next launch, and not trained again.
    mended = Functions(FAKES.train, "tests.sweeps.fakes:evaluate_well")
    assert run(tmp_path, sweep, functions=mended).code == 0
    assert status(tmp_path, f"{way}/seed0").complete
    assert Counter(fakes.calls(tmp_path / "out"))["train", f"{way}/seed0"] == 1


def test_timed_evaluations_have_the_machine_for_themselves(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "b"], seeds=(0, 1), evals=("throughput", "loss"))
    assert run(tmp_path, sweep).code == 0
    files = [tmp_path / "out/runs" / r.key / "eval" for r in sweep.runs()]
    timed = sorted((v["began"], v["ended"]) for f in files if (v := json.loads((f / "throughput.json").read_text())))
    others = [json.loads((f / "loss.json").read_text())["ended"] for f in files]
    assert max(others) <= timed[0][0]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(timed))


def test_evaluations_added_to_a_sweep_are_made_without_training(tmp_path):
    run(tmp_path, sweep_of(tmp_path, ["a"]))
    run(tmp_path, sweep_of(tmp_path, ["a"], evals=("loss", "memory")))
    assert fakes.calls(tmp_path / "out") == [("train", "a/seed0"), ("loss", "a/seed0"), ("memory", "a/seed0")]


def test_arms_and_seeds_added_or_dropped_leave_the_others_alone(tmp_path, capsys):
    run(tmp_path, sweep_of(tmp_path, ["a", "b"]))
    created = state.read(tmp_path / "out")["created"]
    capsys.readouterr()
    changed = sweep_of(tmp_path, ["a", "unused", "c"], seeds=(0, 1))
    changed = Sweep(**{**vars(changed), "studies": tuple(
        Study(**{**vars(s), "arms": tuple(a for a in s.arms if a.name != "unused")}) for s in changed.studies
    )})  # fmt: skip
    run(tmp_path, changed)
    message = capsys.readouterr().out
    assert "new in the sweep file: c" in message
    assert "no longer in the sweep file, their runs stay: b" in message
    counts = Counter(run for what, run in fakes.calls(tmp_path / "out") if what == "train")
    assert counts == {"a/seed0": 1, "b/seed0": 1, "a/seed1": 1, "c/seed0": 1, "c/seed1": 1}
    assert (tmp_path / "out/runs/b/seed0/run.json").exists()
    assert state.read(tmp_path / "out")["created"] == created


def test_a_run_of_another_config_is_refused_by_field_and_left_as_it_is(tmp_path):
    run(tmp_path, sweep_of(tmp_path, ["a", "b"], seeds=(0, 1)))
    files = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    other = sweep_of(tmp_path, ["a", "b", "c"], seeds=(0, 1), **{"model.width": 32})
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, other)
    assert len(refused.value.problems) == 2
    assert "runs/a (seed 0, 1)" in str(refused.value)
    assert "model.width was 64, now 32" in str(refused.value)
    assert {p: p.read_bytes() for p in files} == files
    # What does not change a run may differ.
    assert run(tmp_path, sweep_of(tmp_path, ["a", "b"], seeds=(0, 1), **{"log.every_steps": 7})).code == 0


def test_configs_of_an_older_version_agree_and_are_compared_once_an_arm(tmp_path, monkeypatch):
    sweep = sweep_of(tmp_path, ["a"], seeds=range(4))
    plain = json.loads(json.dumps(fields.to_dict(sweep.runs()[0].base), default=lambda node: node.to_dict()))
    del plain["eval"]["sliding"]  # the older version did not have it
    for seed in range(4):
        write_json(state.run_dir(tmp_path, "a", seed) / "config.json", {**plain, "name": "a", "seed": seed})
    compared, slow = [], state.differences
    monkeypatch.setattr(state, "differences", lambda *given: compared.append(1) or slow(*given))
    assert state.contradictions(tmp_path, sweep.runs()) == [] and len(compared) == 1
    # A run of another seed than its folder's, and one of another rate, are found behind those that agree.
    write_json(state.run_dir(tmp_path, "a", 2) / "config.json", {**plain, "name": "a", "seed": 9})
    other = {**plain, "name": "a", "seed": 3, "optimizer": {**plain["optimizer"], "learning_rate": 0.5}}
    write_json(state.run_dir(tmp_path, "a", 3) / "config.json", other)
    lines = state.contradictions(tmp_path, sweep.runs())
    assert "(seed 2)" in lines[0] and "seed was 9, now 2" in lines[0]
    assert "(seed 3)" in lines[1] and "optimizer.learning_rate was 0.5, now 0.001" in lines[1] and len(lines) == 2


def test_a_directory_of_another_sweep_or_of_a_run_is_refused(tmp_path):
    sweep = sweep_of(tmp_path, ["a"])
    run(tmp_path, sweep)
    with pytest.raises(UserError, match="has the sweep test, not other"):
        run(tmp_path, Sweep(**{**vars(sweep), "name": "other"}))
    with pytest.raises(UserError, match="is a run directory"):
        launch.launch(sweep, tmp_path / "out/runs/a/seed0", functions=FAKES)


def test_a_second_launcher_is_refused_while_the_first_works(tmp_path):
    sweep = sweep_of(tmp_path, ["a"])
    with state.launching(tmp_path / "out"), pytest.raises(UserError, match=f"running here .process {os.getpid()} on"):
        run(tmp_path, sweep)
    assert run(tmp_path, sweep).code == 0


SLOW = """
def get_sweep():
    return dict(name="slow", base="configs/tiny.py", arm="slow", seeds=[0, 1, 2])
"""


@pytest.fixture
def launcher(tmp_path):
    """Starts a launcher of a slow sweep as a process of its own, and waits until two of its runs are at work."""
    (tmp_path / "slow.py").write_text(SLOW)
    started = []

    def start():
        command = [sys.executable, "-m", "tests.sweeps.fakes", str(tmp_path / "slow.py"), str(tmp_path / "out")]
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        until(lambda: len(running(tmp_path)) == 2)
        return process

    yield start
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait()


def running(tmp_path):
    return sorted(p.parent.name for p in (tmp_path / "out/runs/slow").glob("seed*/metrics.jsonl"))


def until(true, seconds=120):  # a busy machine, and one that is stopped for a while
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def gone(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_runs_and_the_same_command_goes_on(tmp_path, launcher, number):
    process = launcher()
    process.send_signal(number)
    message = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number
    assert "stopping: 2 runs being saved" in message
    board = state.run_states(tmp_path / "out")
    assert Counter(s.status for s in board.values()) == {"preempted": 2, "waiting": 1}
    assert all(gone(pid) for pid in fakes.pids(tmp_path / "out"))
    sweep = expand.load(tmp_path / "slow.py")
    quick = Functions("tests.sweeps.fakes:quick", FAKES.evaluate)
    assert run(tmp_path, sweep, functions=quick).code == 0
    assert all(s.complete for s in state.run_states(tmp_path / "out").values())


def test_workers_of_a_killed_launcher_save_their_runs_and_end(tmp_path, launcher):
    process = launcher()
    process.kill()
    process.wait()
    # The next launcher may start at once: it waits for the runs that are still being saved.
    sweep = expand.load(tmp_path / "slow.py")
    quick = Functions("tests.sweeps.fakes:quick", FAKES.evaluate)
    assert run(tmp_path, sweep, functions=quick, workers=3).code == 0
    saved = {p.parent.name: int(p.read_text()) for p in (tmp_path / "out/runs/slow").glob("seed*/saved")}
    assert set(saved) == {"seed0", "seed1"}
    assert max(saved.values()) < 600, "they ran to their end instead"
    until(lambda: all(gone(pid) for pid in fakes.pids(tmp_path / "out")))


def test_a_second_launcher_process_is_refused_with_one_line(tmp_path, launcher):
    launcher()
    again = [sys.executable, "-m", "sweeps.launch", f"--sweep={tmp_path / 'slow.py'}", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(again, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "another launcher is running here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def waiting(jobs, needs=lambda job: [], ready=lambda job: True):
    return Waiting(jobs, needs=needs, ready=ready)


def test_the_seeds_of_an_arm_go_to_one_worker():
    jobs = [worker.Job("", "s", arm, seed, {}, ()) for arm in ("a", "b", "c") for seed in (0, 1)]
    assert waiting(jobs).next(None, set()).key == "a/seed0"
    assert waiting(jobs[1:]).next(None, {("s", "a")}).key == "b/seed0"
    assert waiting(jobs[1:]).next(("s", "b"), {("s", "a")}).key == "b/seed0"
    assert waiting(jobs[1:2]).next(("s", "b"), {("s", "a")}).key == "a/seed1"


def test_a_run_that_waits_for_others_is_looked_at_again_only_when_one_of_them_ends():
    """What a launcher does grows with its runs and not with their square."""
    jobs = [worker.Job("", "s", f"{kind}{i}", 0, {}, ()) for kind in ("parent", "child") for i in range(200)]
    done, requested = set(), []

    def needs(job):
        return [job.key.replace("child", "parent")] if job.arm.startswith("child") else []

    def ready(job):
        requested.append(job.key)
        return set(needs(job)) <= done

    queue = waiting(jobs, needs, ready)
    order = []
    while queue:
        job = queue.next(None, set())
        queue.take(job)
        order.append(job.key)
        done.add(job.key)
        queue.ended(job.key)
    assert sorted(order) == sorted(job.key for job in jobs)
    assert all(order.index(f"parent{i}/seed0") < order.index(f"child{i}/seed0") for i in range(200))
    assert len(requested) <= 3 * len(jobs)
