"""Mistakes of the first hour: each is one line that says what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import train
from configs import cli
from configs.errors import ConfigError, UserError
from eval import run as evaluations
from sweeps import launch
from sweeps.execution import data_check
from sweeps.spec import expand
from sweeps.store import state
from tests.sweeps.test_launch import FAKES, sweep_of
from tests.test_mistakes import config_file, refused
from training.devices import chips, memory
from training.loop import trainer

CHECKOUT = Path(__file__).resolve().parents[1]


def lines_of(*command: str, **env: str) -> list[str]:
    done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode != 0
    return (done.stdout + done.stderr).splitlines()


def commands() -> list[str]:
    """Every file of a room that is a command."""
    results = [
        p for room in ("convert", "data", "eval", "report", "sweeps") for p in Path(CHECKOUT / room).glob("*.py")
    ]
    return sorted(str(p.relative_to(CHECKOUT)) for p in results if "cli.main(main)" in p.read_text())


@pytest.mark.parametrize("path", commands())
def test_a_command_started_by_its_path_says_how(path) -> None:
    name = path[:-3].replace("/", ".")
    assert lines_of(sys.executable, path) == [
        f"error: start it from the checkout as a module: python -m {name}"
    ]  # fmt: skip


@pytest.mark.parametrize("command", [["train.py"], ["-m", "sweeps.launch"], ["-m", "report.build"], ["-m", "eval.run"]])
def test_a_python_without_the_packages_is_told_in_a_line(command) -> None:
    # -S: without site-packages; -I would leave the checkout out too.
    (line,) = lines_of(sys.executable, "-S", *command, PYTHONPATH=str(CHECKOUT))
    assert line.startswith("error: ") and "make setup" in line and ".venv/bin/python" in line


def test_what_is_no_file_or_no_option_has_a_hint(tmp_path) -> None:
    workdir = f"--workdir={tmp_path / 'r'}"
    assert "no file tiny; did you mean configs/tiny.py?" in refused(train.main, "--config=tiny", workdir)
    assert "there are" in refused(train.main, "--config=zzzzqqqq", workdir)
    for given in ("model.num_heads=8", "--model.num_heads=8"):
        said = refused(train.main, config_file(tmp_path), workdir, given)
        assert "a field is set by --config.model.num_heads=8" in said


def test_an_unknown_evaluation_and_a_missing_baseline_show_what_there_is() -> None:
    given = dict(name="t", base="configs/tiny.py", axes=[{"model.num_heads": [1, 2]}], arm="h{model.num_heads}")
    with pytest.raises(ConfigError, match=r"unknown evaluation 'perplexity'.*; there are .*loss.*retrieval"):
        expand.expand(given | {"evals": ["perplexity"]}, file=Path("x.py"))
    with pytest.raises(ConfigError, match=r"baseline = 'base' is not an arm.*; the arms are h1, h2"):
        expand.expand(given | {"baseline": "base"}, file=Path("x.py"))


def test_a_sweeps_folder_given_to_eval_names_a_run(tmp_path) -> None:
    assert launch.launch(sweep_of(tmp_path, ["a"]), tmp_path / "out", functions=FAKES).code == 0
    said = refused(evaluations.main, f"--workdir={tmp_path / 'out'}", "--evals=loss")
    assert "no config.json); it is a sweep; use one of its runs, such as " in said and "runs/a/seed0" in said


def test_paths_that_lead_nowhere_are_found_in_every_arm_before_a_run_begins(tmp_path) -> None:
    (tmp_path / "there.txt").write_text("text")
    paths = {"data.source": "files", "data.path": f"{tmp_path}/no*.txt"}
    sweep = sweep_of(tmp_path, ["a", "b"], **paths)
    with pytest.raises(ConfigError, match=r"data\.path = '.*no\*\.txt': no file matches \(in .*; a, b\)"):
        launch.launch(sweep, tmp_path / "out", functions=FAKES)
    assert not (tmp_path / "out" / "runs").exists()
    data_check.check(sweep_of(tmp_path, ["a"], **paths | {"data.path": f"{tmp_path}/th*.txt"}))
    with pytest.raises(ConfigError, match=r"data.tokenizer = '/nowhere/t.json': no such file"):
        data_check.check(sweep_of(tmp_path, ["a"], **{"data.tokenizer": "/nowhere/t.json"}))


def test_what_memory_cannot_hold_is_refused_by_train_too(tmp_path, monkeypatch) -> None:
    (tmp_path / "words.txt").write_text("some words of a text " * 500)
    given = [config_file(tmp_path, "config.model.width = 64"), f"--workdir={tmp_path / 'r'}", "--quiet"]
    given += [f"--config.data.path={tmp_path / 'words.txt'}", "--config.data.source=files", "--config.data.split=first"]
    monkeypatch.setattr(memory, "memory", lambda: 2**20)
    said = refused(train.main, *given)
    assert (
        "does not fit: its parameters, gradients and optimizer alone need " in said
        and "this machine has 1.0 MiB" in said
    )
    assert not (tmp_path / "r" / "config.json").exists()


def test_a_start_that_failed_blocks_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "words.txt").write_text("some words of a text " * 500)
    config = cli.load("configs/tiny.py")
    small = {"model.width": 16, "model.num_layers": 1, "model.num_heads": 2, "data.length": 16, "data.batch_size": 2}
    small |= {"data.source": "files", "data.path": str(tmp_path / "words.txt"), "data.split": "first"}
    cli.apply(config, small | {"budget.kind": "steps", "budget.amount": 2, "eval.tokens": 64, "log.tensorboard": False})
    with monkeypatch.context() as broken:
        broken.setattr(chips, "peak", lambda kind: 1 / 0)  # in the last lines before the first step
        with pytest.raises(ZeroDivisionError):
            trainer.train(config, tmp_path / "run", quiet=True)
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["status"] == "failed" and not state.begun(tmp_path / "run")
    cli.apply(config, {"model.width": 32})
    assert trainer.train(config, tmp_path / "run", quiet=True)["status"] == "done"
    # The control: one that has taken steps is not overwritten.
    (tmp_path / "run/run.json").write_text(json.dumps(run))
    cli.apply(config, {"model.width": 16})
    with pytest.raises(UserError, match=r"has a run of another config \(model.width"):
        trainer.train(config, tmp_path / "run", quiet=True)
