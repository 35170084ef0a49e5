"""Data workers that die or hang are started anew at the batch that is due; records that are damaged are named."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from configs.errors import UserError
from data import tfds_sets, workers
from data.documents import Document
from data.workers import Watched


class Fake:
    """Gives numbers from `start` on; at those of `wrong` it does what they say, once each."""

    def __init__(self, start: int, wrong: dict[int, object], closed: list[int]) -> None:
        self.at, self.wrong, self.closed = start, wrong, closed

    def __next__(self) -> int:
        what = self.wrong.pop(self.at, None)
        if isinstance(what, Exception):
            raise what
        if what == "hangs":
            time.sleep(60)
        self.at += 1
        return self.at - 1

    def close(self) -> None:
        self.closed.append(self.at)


def taken(count: int, wrong: dict[int, object]) -> tuple[list[int], list[str], list[int]]:
    got: list[int] = []
    said: list[str] = []
    closed: list[int] = []
    stream = Watched(lambda: Fake(len(got), wrong, closed), said.append)
    for batch in itertools.islice(stream, count):
        got.append(batch)
    return got, said, closed


DEAD = RuntimeError("Worker process was terminated unexpectedly with exit code -9. Search the logs above.")


def test_a_worker_that_died_is_replaced_and_no_batch_is_lost_or_given_twice() -> None:
    got, said, closed = taken(6, {2: DEAD, 4: DEAD})
    assert got == [0, 1, 2, 3, 4, 5] and closed == [2, 4]
    assert said == ["a data worker died (exit code -9): restarting the workers"] * 2


def test_a_worker_that_hangs_is_replaced(monkeypatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    got, said, _ = taken(4, {1: "hangs"})
    assert got == [0, 1, 2, 3] and said == ["a data worker produced no batch for 0 s: restarting the workers"]


def test_what_does_not_help_three_times_ends_the_run_and_other_errors_are_not_hidden() -> None:
    with pytest.raises(UserError, match=r"a worker died \(exit code -9\), 3 times in a row \(data.workers = 0"):
        list(Watched(lambda: Fake(0, {0: DEAD}, []), lambda text: None))
    with pytest.raises(ValueError, match="mine"):
        taken(2, {1: ValueError("mine")})


def _worker(pipe) -> None:
    workers.end_with_parent(0, 1)
    pipe.send(os.getpid())
    time.sleep(120)


def _parent() -> None:
    """Starts a worker as Grain does, says its number and waits to be killed."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=_worker, args=(there,), daemon=True).start()
    print(here.recv(), flush=True)
    time.sleep(120)


def test_a_worker_does_not_outlive_the_process_that_was_killed() -> None:
    command = [sys.executable, "-c", "from tests.data import test_workers; test_workers._parent()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([worker], timeout=30)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_real_workers(number, monkeypatch, tmp_path) -> None:
    from configs import base, cli, validate
    from data import pipeline

    monkeypatch.setattr(workers, "PATIENCE", 30.0)
    config = base.get_config()
    changes = {"data.weights.text": 0.0, "data.weights.mqar": 1.0, "data.mqar.vocab_size": 16, "data.prefetch": 1}
    cli.apply(config, {**changes, "data.workers": 1, "data.length": 16, "data.batch_size": 2})
    config = validate.resolve(config)
    said: list[str] = []
    with_workers = pipeline.TrainStream(config, None, None)
    with_workers.say = said.append
    got = [next(with_workers)["tokens"].tolist() for _ in range(2)]
    for process in multiprocessing.active_children():
        os.kill(process.pid, number)
    got += [next(with_workers)["tokens"].tolist() for _ in range(6)]
    with_workers.close()
    config.data.workers = 0
    assert got == [batch["tokens"].tolist() for batch in itertools.islice(pipeline.TrainStream(config, None, None), 8)]
    assert len(said) == 1


def test_a_damaged_record_is_named(tmp_path) -> None:
    texts = [Document(f"n{i}", f"text {i} " + "x" * 300) for i in range(50)]
    tfds_sets.write(tmp_path, {"train": lambda: texts, "validation": lambda: texts[:2]})
    path = next(tmp_path.rglob("*train*array_record*"))
    content = bytearray(path.read_bytes())
    content[2000] ^= 4
    path.write_bytes(content)
    train, _ = tfds_sets.read_prepared(tmp_path)
    with pytest.raises(
        UserError, match=r"^train, record \d+: is damaged \(Corrupted Riegeli/records file: chunk"
    ) as message:
        list(train)
    place = int(str(message.value).split("record ")[1].split(":")[0])
    assert train[place - 1] == texts[place - 1].text
    with pytest.raises(UserError, match=f"record {place}: "):
        train[place]
