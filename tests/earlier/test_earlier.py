"""Run and sweep directories of an earlier version load, evaluate, resume and report as they did there.

`directories.tar.xz` was written by commit 0655ad1, before the schema, the registries and the rooms of today: `run`,
which was stopped after step 8 of 12; `sweep`, made from `heads.py`; and in `expected` what that commit went on to: the
metrics and evaluation of the run at step 12, and the sweep's table.
"""

import csv
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from configs.errors import UserError
from eval import run as evaluations
from report import build
from sweeps import launch
from sweeps.execution.driver import Functions
from sweeps.spec import expand
from training.loop import trainer
from training.run_directory import run as runs
from training.run_directory.files import read_json, read_lines, write_json

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
CLOSE = 2e-6  # relative: another processor adds float32 in another order; on one machine the digits are equal
# Speed, and FLOPs: since then attention counts the keys that a query sees, where it counted all of the row.
OTHERWISE = ("tokens_per_second", "flops")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(HERE / "directories.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def earlier(unpacked, tmp_path, monkeypatch) -> Path:
    """The directories, a copy of the test's own; their configs name the text relative to the checkout."""
    monkeypatch.chdir(CHECKOUT)
    shutil.copytree(unpacked, tmp_path / "earlier")
    return tmp_path / "earlier"


def losses(workdir: Path) -> dict:
    """Evaluates a run; returns what it says of the loss."""
    return evaluations.evaluate(workdir, ["loss"])["loss"]


def same_loss(result: dict, expected: dict) -> None:
    assert result["loss"] == pytest.approx(expected["loss"], rel=CLOSE)
    assert result["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=CLOSE)
    assert (result["step"], result["tokens"]) == (expected["step"], expected["tokens"])


def test_a_run_evaluates_and_resumes_as_it_did(earlier: Path) -> None:
    run, expected = earlier / "run", earlier / "expected"
    before = read_json(run / "eval" / "loss.json")
    same_loss(losses(run), before)
    result = trainer.train(runs.load_config(run), run, quiet=True)
    assert (result["status"], result["step"], result["tokens"]) == ("done", 12, 12 * 4 * 16)
    lines = list(zip(read_lines(run / "metrics.jsonl"), read_lines(expected / "metrics.jsonl"), strict=True))
    assert len(lines) == 4 and [line["step"] for line, _ in lines] == [3, 6, 9, 12]
    for line, there in lines:
        assert line.keys() == there.keys()
        for name in set(line) - {*OTHERWISE}:
            assert line[name] == pytest.approx(there[name], rel=CLOSE), (line["step"], name)
    after = losses(run)
    same_loss(after, read_json(expected / "loss.json"))
    assert abs(after["loss"] - before["loss"]) > 1e-3, "what is compared does change"


def test_a_run_whose_budget_is_in_flops_is_not_resumed_under_another_count(earlier: Path) -> None:
    run = earlier / "run"
    values = read_json(run / "config.json")
    values["budget"] = {"kind": "flops", "amount": 6_598_656.0}
    write_json(run / "config.json", values)
    with pytest.raises(UserError, match=r"8592 FLOPs a token.* 7872 here.*budget.kind = 'flops'"):
        trainer.train(runs.load_config(run), run, quiet=True)
    assert read_json(run / "run.json")["status"] == "preempted"


def test_a_sweep_is_complete_and_reports_the_same_numbers(earlier: Path) -> None:
    directory = earlier / "sweep"
    sweep = expand.load(str(HERE.relative_to(CHECKOUT) / "heads.py"))
    nothing = Functions(train="tests.earlier.test_earlier:none", evaluate="tests.earlier.test_earlier:none")
    before = {path: path.read_bytes() for path in directory.glob("runs/*/*/*.json*")}
    done = launch.launch(sweep, directory, functions=nothing, report=build.build)
    assert len(before) == 3 * 4 and before == {path: path.read_bytes() for path in directory.glob("runs/*/*/*.json*")}
    assert done.code == 0
    table = directory / "report" / "table.csv"
    with table.open() as ours, (earlier / "expected" / "table.csv").open() as theirs:
        rows = list(zip(csv.DictReader(ours), csv.DictReader(theirs), strict=True))
    assert [row["arm"] for row, _ in rows] == ["heads1", "heads2"] and float(rows[1][0]["loss_difference"]) < 0
    for row, there in rows:
        differing = {name: (row[name], value) for name, value in there.items() if row[name] != value}
        differing.pop("marks", None)  # which now note that those results do not say which checkpoint they are of
        assert not differing, json.dumps(differing)


def none(*given: object) -> None:
    """Stands for training and evaluating where nothing is left to do."""
    raise AssertionError(f"nothing is left to do, but there is {given}")
