"""A night on a cluster in five minutes: 24 real runs, and most that goes wrong going wrong, on each launcher.

The launcher is killed twice, one worker is killed, a node is drained and comes back (on Ray a node dies and another
comes; locally a worker is frozen for a while), one arm fails and one diverges. Every other run is done exactly once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pandas as pd
import psutil
import pytest

from sweeps.launchers.queues import squeue
from sweeps.store import jobs, state
from tests.cluster.slurm import require
from tests.sweeps.test_launch import CHECKOUT, until

SWEEP = """
FOLDER = {folder!r} + "/"
ARMS = ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "fails", "diverges"]
RATES = [1e-3 * (i + 1) for i in range(11)] + [1e30]

def get_sweep():
    return dict(
        name="scenario", base="configs/tiny.py",
        fixed={{
            "model.width": 16, "model.num_layers": 1, "model.num_heads": 2, "model.head_dim": 8, "data.length": 16,
            "data.batch_size": 2, "data.split": "first", "budget.amount": 300, "eval.every_steps": 0,
            "eval.multiples": (1,), "eval.bootstrap": 10, "log.every_steps": 20, "log.tensorboard": False,
            "checkpoint.every_steps": 20,
        }},
        axes=[{{"optimizer.learning_rate": RATES}}],
        # A folder that is no corpus: nothing is wrong with the config, and the run fails when it opens its data.
        derived={{"data.path": lambda c: FOLDER + ("none" if c.optimizer.learning_rate == RATES[10] else "text.txt")}},
        arm=lambda c: ARMS[RATES.index(c.optimizer.learning_rate)],
        seeds=[0, 1], baseline="a1", evals=["loss"],
    )
"""
GOOD = [f"a{i + 1}/seed{seed}" for i in range(10) for seed in (0, 1)]


class Night:
    """The sweep's folder, its launchers, and what happens to them."""

    def __init__(self, folder, launcher, *options):
        self.folder, self.out, self.launcher, self.options = folder, folder / "out", launcher, options
        (folder / "sweep.py").write_text(SWEEP.format(folder=str(folder)))
        (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 200)
        (folder / "none").mkdir()
        self.process = None
        self.deaths = Counter()

    def begin(self):
        command = [sys.executable, "-m", "sweeps.launch", f"--sweep={self.folder / 'sweep.py'}", f"--out={self.out}"]
        command += [f"--launcher={self.launcher}", "--retries=1", *self.options]
        with (self.folder / "told.txt").open("a") as message:
            self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=message, stderr=subprocess.STDOUT)

    def kill(self):
        """kill -9 of the launcher alone."""
        self.process.kill()
        self.process.wait()
        self.deaths["launcher"] += 1

    def board(self):
        return state.run_states(self.out) if (self.out / "sweep.json").exists() else {}

    def done(self, number):
        """Waits until so many runs are done."""
        until(lambda: sum(run.status == "done" for run in self.board().values()) >= number, 600)

    def at_work(self):
        """Waits for a run that is at work; returns (its key, its process)."""
        results = []

        def look():
            results[:] = [key for key, run in self.board().items() if run.status == "running" and key in GOOD]
            return results

        until(look, 300)
        return results[0], json.loads((self.out / "runs" / results[0] / "run.json").read_text())["pid"]

    def kill_worker(self):
        while True:
            key, pid = self.at_work()
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.deaths["worker"] += 1
            return key

    def end(self):
        """Waits for the launcher's end; returns its exit code and all that was told."""
        code = self.process.wait(900)
        return code, (self.folder / "told.txt").read_text()


def check(night, code, message):
    """What must be true in the morning."""
    board = night.board()
    counts = Counter(run.status for run in board.values())
    assert counts == {"done": 20, "failed": 2, "diverged": 2}, (counts, message)
    assert code == 1  # a run failed
    last = message[message.rindex("sweep scenario:") :]
    for seed in (0, 1):
        assert f"failed: fails/seed{seed}: " in last
        assert f"diverged: diverges/seed{seed}: the training loss became" in last
    begun = Counter()
    for key in GOOD:
        folder = night.out / "runs" / key
        assert board[key].complete and board[key].step == 300
        steps = [line["step"] for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]
        assert steps == list(range(20, 301, 20)), key  # each exactly once, whatever was interrupted
        log = (folder / "log.txt").read_text()
        begun[key] = log.count(f" {key}, process ")
        assert 1 <= log.count(" evaluating: loss") <= begun[key], key  # once, where nothing interrupted it
    table = pd.read_csv(night.out / "report/table.csv")
    arms = [f"a{i + 1}" for i in range(10)]
    assert set(arms) <= set(table["arm"])
    assert table[table["arm"].isin(arms)].filter(regex="^(val_)?loss").notna().any(axis=1).all()
    assert not jobs.noted(night.out)
    more = {key: times for key, times in begun.items() if times > 1}
    print(f"{night.launcher}: {dict(night.deaths)}; {dict(counts)}; taken up again: {more}")
    return begun


def in_a_cluster():
    """A Ray cluster of two nodes on this machine, as Ray's own tests make them."""
    os.environ.update(RAY_worker_niceness="0")  # Ray's workers have 15, and starve beside other tests
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    return cluster, cluster.add_node(num_cpus=1)


@pytest.mark.slow
def test_on_slurm(tmp_path):
    require()
    night = Night(tmp_path, "slurm")
    node = subprocess.run(["sinfo", "-h", "-o", "%n"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        night.begin()
        night.done(2)
        night.kill()
        night.begin()
        night.kill_worker()
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=scenario"], check=True)
        night.deaths["drained"] += 1
        words = []

        def drained():
            words[:] = [squeue.states([r.id]).get(r.id) for r in jobs.noted(night.out)]
            return words and not any(word and word.runs for word in words)

        until(drained, 300)
        night.kill()
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=True)
        night.begin()
        check(night, *night.end())
    finally:
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], capture_output=True)
        if night.process.poll() is None:
            night.process.kill()
        squeue.cancel([record.id for record in jobs.noted(night.out)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray(tmp_path):
    cluster, second = in_a_cluster()
    night = Night(tmp_path, "ray", f"--address={cluster.address}")
    try:
        night.begin()
        night.done(2)
        night.kill()
        night.begin()
        night.kill_worker()
        night.done(6)
        cluster.remove_node(second)
        night.deaths["node"] += 1
        night.done(8)
        cluster.add_node(num_cpus=1)
        night.kill()
        night.begin()
        check(night, *night.end())
    finally:
        if night.process.poll() is None:
            night.process.kill()
        cluster.shutdown()


@pytest.mark.slow
def test_here(tmp_path):
    night = Night(tmp_path, "local", "--workers=2")
    try:
        night.begin()
        night.done(2)
        night.kill()
        night.begin()
        night.kill_worker()
        night.done(8)
        _, pid = night.at_work()
        frozen = psutil.Process(pid)
        frozen.suspend()
        night.deaths["frozen"] += 1
        time.sleep(5)
        frozen.resume()
        night.kill()
        night.begin()
        check(night, *night.end())
    finally:
        if night.process.poll() is None:
            night.process.terminate()
            night.process.wait()
