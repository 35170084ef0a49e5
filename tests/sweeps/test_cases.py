"""Small sweeps, run for real, in which a number could be taken for that of something else; each with the right outcome.

A result of another step, arms that were asked different questions, a parent that is gone, rows of different lengths.
Files that were renamed after training are refused in tests/eval/test_provenance.py.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from report.claims import words
from report.reading.directories import read
from tests.sweeps.test_launch import CHECKOUT, until

pytestmark = pytest.mark.slow

FIXED = {
    "model.width": 16, "model.num_layers": 1, "model.num_heads": 2, "data.length": 15, "data.batch_size": 8,
    "data.split": "first", "data.tokenizer": "char", "optimizer.warmup_steps": 5, "optimizer.learning_rate": 0.01,
    "log.tensorboard": False, "log.every_steps": 5, "eval.every_steps": 0, "eval.tokens": 512, "eval.bootstrap": 20,
    "eval.batch_size": 8, "eval.multiples": (1,), "eval.retrieval.generate": False,
}  # fmt: skip


class Case:
    """A folder with a corpus and a sweep file, and the commands as a user gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        draw = random.Random(0)
        names = [f"word{index}" for index in range(20)]
        (folder / "text.txt").write_text(" ".join(draw.choice(names) for _ in range(3000)))

    def sweep(self, lines: str, **fixed: object) -> None:
        """Writes the sweep file; `lines` are its further keys, and what they vary is not fixed."""
        given = FIXED | {"data.path": str(self.folder / "text.txt")}
        given |= {name.replace("__", "."): value for name, value in fixed.items()}
        given = {name: value for name, value in given.items() if f"'{name}'" not in lines}
        content = f"dict(name='case', base='configs/tiny.py', fixed={given!r}, {lines})"
        (self.folder / "sweep.py").write_text(f"def get_sweep():\n    return {content}\n")

    def launch(self, out: str = "out") -> list[str]:
        """Returns the launcher's command."""
        where = [f"--sweep={self.folder / 'sweep.py'}", f"--out={self.folder / out}", "--workers=1"]
        return [sys.executable, "-m", "sweeps.launch", *where]

    def evaluate(self, run: str, *options: str) -> dict:
        """Evaluates a run by the command, and returns what loss.json or retrieval.json then holds."""
        evaluation = "retrieval" if any("retrieval" in option for option in options) else "loss"
        given = [f"--workdir={self.out / 'runs' / run}", f"--evals={evaluation}", *options]
        done = command([sys.executable, "-m", "eval.run", *given])
        assert done.returncode == 0, done.stderr
        return self.result(run, evaluation)

    def result(self, run: str, evaluation: str = "loss", out: str = "out") -> dict:
        return json.loads((self.folder / out / "runs" / run / "eval" / f"{evaluation}.json").read_text())

    def said(self) -> list[str]:
        """The report's sentences about the arms."""
        return [one.text for one in words.arms(read(self.out).studies[0])]


def command(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, text=True)


def done(arguments: list[str]) -> None:
    ended = command(arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_an_evaluation_in_the_middle_of_a_run_is_not_the_finished_runs(case: Case) -> None:
    case.sweep("axes=[{'model.num_heads': [1]}], arm='h1', seeds=[0], evals=['loss']", budget__amount=4000)
    run = case.out / "runs/h1/seed0"
    with (case.folder / "log").open("wb") as log:
        launcher = subprocess.Popen(case.launch(), cwd=CHECKOUT, stdout=log, stderr=log)
    log = run / "metrics.jsonl"
    until(lambda: launcher.poll() is not None or (log.exists() and len(log.read_text().splitlines()) > 3), 300)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait()
    middle = case.evaluate("h1/seed0")
    assert 0 < middle["step"] < 4000 and json.loads((run / "run.json").read_text())["status"] != "done"
    done(case.launch())
    end = case.result("h1/seed0")
    assert end["step"] == 4000 and end["loss"] != middle["loss"]
    assert pd.read_csv(case.out / "report/table.csv").loc[0, "loss"] == pytest.approx(end["loss"], rel=1e-9)
    (run / "eval/loss.json").unlink()
    assert case.evaluate("h1/seed0")["loss"] == end["loss"]


def test_an_arm_that_was_asked_an_easier_question_is_not_compared(case: Case) -> None:
    case.sweep(
        "axes=[{'model.num_heads': [2, 4]}], arm='h{model.num_heads}', seeds=[0, 1], baseline='h2', "
        "evals=['retrieval']",
        budget__amount=20, data__mqar__vocab_size=16, data__weights__text=0.0, data__weights__mqar=1.0,
        data__mqar__pairs=4,
    )  # fmt: skip
    done(case.launch())
    assert not any("not comparable" in text for text in case.said())
    for seed in (0, 1):
        assert case.evaluate(f"h4/seed{seed}", "--config.eval.retrieval.needles=(1,)")["pairs"] == 1
    (message,) = [text for text in case.said() if "retrieval" in text]
    assert (
        "not comparable" in message and "eval.retrieval.needles = [1] against [4]" in message and "beats" not in message
    )
    done(case.launch())  # asks what the sweep asks for again
    assert case.result("h4/seed0", "retrieval")["pairs"] == 4
    assert not any("not comparable" in text for text in case.said())


def test_a_child_of_a_parent_that_is_gone_is_refused_and_then_trained_as_in_a_fresh_folder(case: Case) -> None:
    def chain(steps: int) -> None:
        stages = [{"budget.amount": steps}, {"budget.amount": 11, "init_from": "arm:base"}]
        arm = "lambda c: 'tuned' if c.init_from else 'base'"
        case.sweep(f"axes=[{{'chain': {stages}}}], arm={arm}, seeds=[0], baseline='base', evals=['loss']")

    chain(10)
    done(case.launch())
    before = case.result("tuned/seed0")["loss"]
    chain(60)
    shutil.rmtree(case.out / "runs/base")
    refused = command(case.launch())
    message = (
        "runs/tuned (seed 0): started from base/seed0, which has changed since: budget.amount was 10.0, is now 60.0"
    )
    assert refused.returncode == 2 and message in refused.stderr and "or remove these runs" in refused.stderr
    assert case.result("tuned/seed0")["loss"] == before  # nothing was touched
    shutil.rmtree(case.out / "runs/tuned")
    done(case.launch())
    done(case.launch("fresh"))
    for arm in ("base", "tuned"):
        assert case.result(f"{arm}/seed0")["loss"] == case.result(f"{arm}/seed0", out="fresh")["loss"]
    assert case.result("tuned/seed0")["loss"] != before


def test_losses_on_rows_of_different_lengths_are_not_compared(case: Case) -> None:
    case.sweep(
        "axes=[{'data.length': [16, 64]}], derived={'data.batch_size': lambda c: 256 // c.data.length}, "
        "arm='T{data.length}', seeds=[0, 1], baseline='T16', evals=['loss']",
        budget__amount=2560, budget__kind="tokens", eval__multiples=(), eval__lengths=(16, 64), eval__tokens=0,
    )  # fmt: skip
    done(case.launch())
    (message,) = [text for text in case.said() if text.startswith("T64 against T16, loss")]
    assert "not comparable" in message and "data.length = 64 against 16" in message and "beats" not in message
    assert pd.read_csv(case.out / "report/table.csv").loc[1, "verdict"] == "not comparable"
