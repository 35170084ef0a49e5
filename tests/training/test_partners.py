"""Processes that watch one another: a dead one ends the others, one that ends as usual does not."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

PROCESS = """
import pathlib, sys, time
from training.runtime import partners
folder, index = pathlib.Path(sys.argv[1]), int(sys.argv[2])

class Client:
    def key_value_set(self, key, value):
        (folder / "new").write_text(value)
        (folder / "new").rename(folder / "key")

    def blocking_key_value_get(self, key, milliseconds):
        while not (folder / "key").exists():
            time.sleep(0.01)
        return (folder / "key").read_text()

partners.GRACE = 0.2
partners.record = lambda told: (folder / f"record{index}").write_text(told)
partners.watch(Client(), index, 3, "127.0.0.1")
while len(partners._connections) < (2 if index == 0 else 1):
    time.sleep(0.01)
(folder / f"ready{index}").write_text("")
while not (folder / f"leave{index}").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def processes(tmp_path: Path):
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    started = [subprocess.Popen([*command, str(index)], stderr=subprocess.PIPE, text=True) for index in range(3)]
    until = time.monotonic() + 120
    while not all((tmp_path / f"ready{index}").exists() for index in range(3)):
        assert time.monotonic() < until
        time.sleep(0.02)
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("dies", [0, 2])
def test_one_that_is_killed_ends_the_others(processes, tmp_path: Path, dies: int) -> None:
    processes[dies].kill()
    for index, process in enumerate(processes):
        said = process.communicate(timeout=60)[1]
        if index != dies:
            assert process.returncode == 2
            assert (
                said.startswith("error: the processes of this run lost one another (process ") and said.count("\n") == 1
            )
            assert (tmp_path / f"record{index}").read_text() == said.removeprefix("error: ").rstrip()


def test_one_that_ends_as_usual_ends_nobody(processes, tmp_path: Path) -> None:
    for index in (1, 0):
        (tmp_path / f"leave{index}").write_text("")
        assert processes[index].communicate(timeout=60)[1] == "" and processes[index].returncode == 0
    time.sleep(1.0)
    assert processes[2].poll() is None
