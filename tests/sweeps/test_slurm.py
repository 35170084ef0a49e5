"""The Slurm launcher against a real Slurm of one node, and what is read from Slurm's words."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from configs.errors import UserError
from sweeps import cancel, launch, status
from sweeps.execution.policy import Policy
from sweeps.launchers import engines
from sweeps.launchers.queues import slurm_options, squeue
from sweeps.launchers.queues.squeue import job_state
from sweeps.spec import expand
from sweeps.store import jobs, state
from sweeps.store.jobs import Record
from sweeps.store.run_status import RunState
from tests.cluster.slurm import require
from tests.sweeps import fakes
from tests.sweeps.test_launch import CHECKOUT, FAKES, sweep_of, until
from training.runtime import distributed

SWEEP = """
ARMS = {arms}

def get_sweep():
    rates = {{1e-3 * (i + 1): name for i, name in enumerate(ARMS)}}
    return dict(name="test", base="configs/tiny.py", axes=[{{"optimizer.learning_rate": list(rates)}}],
                arm=lambda c: rates[c.optimizer.learning_rate], evals=["loss"])
"""


@pytest.fixture(scope="module")
def cluster():
    require()


@pytest.fixture
def ended(tmp_path):
    """Cancels what a test leaves in the queue."""
    yield
    squeue.cancel([record.id for record in jobs.noted(tmp_path / "out")])


def run(tmp_path, sweep, launcher="slurm", retries=0, **options):
    where = engines.Where(launcher, options)
    return launch.launch(sweep, tmp_path / "out", functions=FAKES, where=where, policy=Policy(retries=retries))


def started(tmp_path, arms, *options):
    """Starts a launcher as a process of its own; returns it and the sweep."""
    (tmp_path / "sweep.py").write_text(SWEEP.format(arms=arms))
    command = [sys.executable, "-m", "tests.sweeps.fakes", str(tmp_path / "sweep.py"), str(tmp_path / "out"), "slurm"]
    process = subprocess.Popen([*command, "0", *options], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    return process, expand.load(tmp_path / "sweep.py")


def queued(tmp_path, number):
    until(lambda: len(jobs.noted(tmp_path / "out")) == number)
    return {record.key: record.id for record in jobs.noted(tmp_path / "out")}


def steps(tmp_path, arm):
    path = tmp_path / "out/runs" / arm / "seed0/steps"
    return list(map(int, path.read_text().split())) if path.exists() else []


def at_work(tmp_path, arm):
    return (tmp_path / "out/runs" / arm / "seed0/metrics.jsonl").exists()


def test_a_sweep_is_one_array_each_run_once_and_is_finished_by_another_launcher(cluster, ended, tmp_path):
    sweep = sweep_of(tmp_path, ["a", "raise", "kill", "diverge", "once"])
    requested = {"partition": "main", "time": "1:00:00", "cpus": "1", "memory": "500M", "sbatch": ["nice=5"]}
    summary = run(tmp_path, sweep, **requested)
    failed = {key: error.split(": ", 1)[-1] for key, error in summary.failed.items()}
    assert failed == {
        "raise/seed0": "no such luck", "kill/seed0": "FAILED, killed by signal 9", "once/seed0": "FAILED, exit code 1",
    }  # fmt: skip
    assert list(summary.diverged) == ["diverge/seed0"]
    (script,) = (tmp_path / "out/.sweep/slurm").glob("*/*_submission.sh")
    given = {line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {"array=0-4%5", "partition=main", "time=60", "cpus-per-task=1", "mem=500M", "nice=5", "requeue"} <= given
    assert "signal=USR2@120" in given and "--cpus-per-task=1" in script.read_text().splitlines()[-1]
    assert "training a" in (tmp_path / "out/runs/a/seed0/log.txt").read_text()
    assert (tmp_path / "out/runs/raise/seed0/log.txt").read_text().endswith("RuntimeError: no such luck\nsecond line\n")
    # Begun on Slurm, continued on this machine: only what failed is done again.
    summary = run(tmp_path, sweep, "local")
    assert sorted(summary.failed) == ["kill/seed0", "raise/seed0"]
    counts = Counter(fakes.calls(tmp_path / "out"))
    trained = {arm: counts["train", f"{arm}/seed0"] for arm in ("a", "raise", "kill", "diverge", "once")}
    assert trained == {"a": 1, "raise": 2, "kill": 2, "diverge": 1, "once": 2}
    assert not jobs.noted(tmp_path / "out")


def test_jobs_go_on_without_their_launcher_and_the_next_one_takes_them_up(cluster, ended, tmp_path):
    process, sweep = started(tmp_path, ["brief-a", "brief-b", "a"])
    # One may be at work before the launcher has written down the others.
    until(lambda: len(list((tmp_path / "out/.sweep/slurm").glob("*/*_submitted.pkl"))) == 3)
    until(lambda: at_work(tmp_path, "brief-a"))
    process.kill()
    process.communicate()
    assert run(tmp_path, sweep).code == 0
    assert set(Counter(fakes.calls(tmp_path / "out")).values()) == {1}
    assert steps(tmp_path, "brief-a") == steps(tmp_path, "brief-b") == [25]


def test_what_waits_in_the_queue_shows_is_left_alone_by_others_and_taken_back(cluster, ended, tmp_path, capsys):
    process, sweep = started(tmp_path, ["a", "b", "c"], "hold")
    ids = queued(tmp_path, 3)
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "3 runs left to slurm" in message
    board, _ = status.run_states(tmp_path / "out")
    assert board["a/seed0"].status == "waiting"
    assert board["a/seed0"].note == f"queued: slurm job {ids['a/seed0']} (JobHeldUser)"
    summary = run(tmp_path, sweep, "local")
    assert summary.code == 1 and sorted(summary.busy) == ["a/seed0", "b/seed0", "c/seed0"]
    assert f"slurm has it as job {ids['a/seed0']} (PENDING)" in summary.busy["a/seed0"]
    assert not fakes.calls(tmp_path / "out")
    # An arm that the sweep file no longer has, or has otherwise, is not left in the queue.
    (tmp_path / "sweep.py").write_text(SWEEP.format(arms=["a", "c"]))
    process, sweep = started(tmp_path, ["a", "c"], "hold")
    until(lambda: squeue.states([ids["b/seed0"]])[ids["b/seed0"]].over)
    until(lambda: set(queued(tmp_path, 2)) == {"a/seed0", "c/seed0"})
    again = queued(tmp_path, 2)
    assert again["a/seed0"] == ids["a/seed0"]  # as it was: taken up
    assert again["c/seed0"] != ids["c/seed0"]  # another learning rate: queued anew
    assert cancel.main([str(tmp_path / "out")]) == 0
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert not jobs.noted(tmp_path / "out")
    assert all(word.over for word in squeue.states(list(again.values())).values())
    assert run(tmp_path, sweep, "local").code == 0


def test_cancel_takes_back_what_no_launcher_watches(cluster, ended, tmp_path, capsys):
    process, _ = started(tmp_path, ["slow", "a"], "nice=1")
    until(lambda: at_work(tmp_path, "slow"))
    process.kill()
    process.communicate()
    assert cancel.main([str(tmp_path / "out")]) == 0
    assert "cancelled on slurm" in capsys.readouterr().out
    assert state.run_states(tmp_path / "out")["slow/seed0"].status == "preempted"  # saved
    assert 0 < steps(tmp_path, "slow")[0] < 600
    assert not jobs.noted(tmp_path / "out")


def test_a_run_that_is_requeued_is_saved_and_goes_on_without_a_launcher(cluster, ended, tmp_path):
    process, sweep = started(tmp_path, ["brief-a", "brief-b"])
    ids = queued(tmp_path, 2)
    until(lambda: at_work(tmp_path, "brief-a") and at_work(tmp_path, "brief-b"))
    process.kill()
    process.communicate()
    subprocess.run(["scontrol", "requeue", ids["brief-a/seed0"]], check=True)  # as preemption does
    subprocess.run(["scancel", "--signal=USR2", ids["brief-b/seed0"]], check=True)  # as the time limit does, in time
    until(lambda: squeue.states([ids["brief-a/seed0"]])[ids["brief-a/seed0"]].waits, 200)
    until(lambda: squeue.states([ids["brief-b/seed0"]])[ids["brief-b/seed0"]].waits, 200)
    for job in ids.values():  # Slurm would wait two minutes; in the same second its own credential fails
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now+3"], check=True)
    assert run(tmp_path, sweep).code == 0
    assert len(list((tmp_path / "out/.sweep/slurm").glob("*/*_submitted.pkl"))) == 2  # nothing was queued anew
    for arm in ("brief-a", "brief-b"):
        first, last = steps(tmp_path, arm)
        assert 0 < first < last == 25
        log = (tmp_path / "out/runs" / arm / "seed0/log.txt").read_text()
        assert log.count(f"slurm job {ids[f'{arm}/seed0']}") == 2  # the same job, twice


@pytest.mark.slow
def test_a_run_that_slurm_preempts_goes_on_in_its_own_job(cluster, ended, tmp_path):
    partitions = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, check=True).stdout.split()
    if not {"spare", "urgent"} <= set(partitions):
        pytest.skip("this Slurm is not the one of tests/cluster/slurm.sh: it has no partitions that preempt")
    everything = subprocess.run(["sinfo", "-h", "-o", "%c"], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    process, _ = started(tmp_path, ["brief-a"], "partition=spare", f"cpus-per-task={everything}")
    try:
        ids = queued(tmp_path, 1)
        until(lambda: at_work(tmp_path, "brief-a"), 300)
        subprocess.run(["srun", "--partition=urgent", f"--cpus-per-task={everything}", "true"], check=True, timeout=300)
        (job,) = ids.values()
        until(lambda: squeue.states([job])[job].waits, 200)
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now+3"], check=True)
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.communicate()
    first, last = steps(tmp_path, "brief-a")
    assert 0 < first < last == 25
    assert (tmp_path / "out/runs/brief-a/seed0/log.txt").read_text().count(f"slurm job {job} on") == 2


def test_what_sbatch_refuses_is_told_in_a_line(cluster, tmp_path):
    with pytest.raises(UserError, match=r"sbatch refuses the jobs: .*Invalid partition") as message:
        run(tmp_path, sweep_of(tmp_path, ["a"]), partition="nosuch")
    assert len(str(message.value).splitlines()) == 1


TASK = """
import sys; sys.path.insert(0, sys.argv[1])
from training.runtime import distributed
assert distributed.initialise()
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
me = jax.process_index()
print(me, jax.process_count(), multihost_utils.process_allgather(jnp.float32(me + 1)).sum())
"""


def test_the_tasks_of_a_job_are_one_jax_cluster(cluster):
    command = ["srun", "-n", "2", "--time=2", sys.executable, "-c", TASK, str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line[0].isdigit()) == ["0 2 3.0", "1 2 3.0"]


SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}


@pytest.mark.parametrize("given, expected", [
    ({}, 1),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 1),  # the script of sbatch -n 8: one process
    (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, 1),
    (SRUN, 2),
])  # fmt: skip
def test_how_many_processes_slurm_started(given, expected, monkeypatch):
    for name in SRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert distributed.slurm_tasks(os.environ) == expected
    if expected == 1:
        assert not distributed.initialise()


# --- without a Slurm -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, expected", [
    ("90", 90), ("90:30", 91), ("4:00:00", 240), ("1-0", 1440), ("2-12", 3600), ("1-01:30", 1530), ("0-0:10:01", 11),
])  # fmt: skip
def test_time_limits_as_sbatch_takes_them(text, expected):
    assert slurm_options.minutes(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "0", "4h", "1:2:3:4", "-1"])
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(UserError, match="--time="):
        slurm_options.minutes(text)


RECORD = Record("slurm", "12_3", "a", 0, "", "")


@pytest.mark.parametrize("run, word, expected", [
    (RunState("waiting"), job_state("PENDING", "Priority"), ("waiting", "queued: slurm job 12_3 (Priority)", "")),
    (RunState("waiting"), job_state("RUNNING"), ("waiting", "slurm job 12_3", "")),
    (RunState("running"), job_state("OUT_OF_MEMORY"), ("failed", "", "slurm job 12_3: OUT_OF_MEMORY")),
    (RunState("preempted", "its process ended"), job_state("NODE_FAIL"), ("failed", "", "slurm job 12_3: NODE_FAIL")),
    (RunState("preempted", "its process ended"), job_state("RUNNING"), ("running", "slurm job 12_3", "")),
    (RunState("preempted", error="stopped"), job_state("CANCELLED"), ("preempted", "", "stopped")),
    (RunState("failed", error="x"), job_state("PENDING"), ("failed", "queued: slurm job 12_3", "")),
    (RunState("failed", error="x"), job_state("FAILED"), ("failed", "", "x")),
    (RunState("done"), job_state("FAILED"), ("done", "", "")),
    (RunState("diverged", error="nan"), job_state("RUNNING"), ("diverged", "", "nan")),
    (RunState("running"), job_state("COMPLETED"), ("running", "", "")),
])  # fmt: skip
def test_what_slurm_says_joins_what_the_files_say(run, word, expected):
    result = jobs.merge(run, RECORD, word)
    assert (result.status, result.note, result.error) == expected


def test_slurms_words_are_read_from_both_of_its_commands(monkeypatch):
    said = {
        "squeue": "12_3|RUNNING|None\n12_4|PENDING|Priority\n99|RUNNING|None\n",
        "sacct": "12_5|CANCELLED by 0|None\n12_6|TIMEOUT|None\n",
    }
    monkeypatch.setattr(squeue, "_run", lambda command: said.get(command[0]))
    result = squeue.states(["12_3", "12_4", "12_5", "12_6", "12_7"])
    assert result == {
        "12_3": job_state("RUNNING"), "12_4": job_state("PENDING", "Priority"),
        "12_5": job_state("CANCELLED"), "12_6": job_state("TIMEOUT"),
        "12_7": job_state(squeue.GONE),
    }  # fmt: skip
    assert [result[job].over for job in result] == [False, False, True, True, True]


def test_without_slurm_the_launcher_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(squeue, "_run", lambda command: None)
    with pytest.raises(UserError, match="Slurm does not answer here"):
        run(tmp_path, sweep_of(tmp_path, ["a"]))
    assert squeue.states(["1"]) == {}
