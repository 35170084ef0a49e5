"""The command: what it writes, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs import base, cli
from configs.errors import UserError
from eval import progress
from eval import run as command
from training.loop import trainer
from training.run_directory.files import read_json


@pytest.fixture(scope="session")
def workdir(text: Path, tmp_path_factory) -> Path:
    """A trained run directory."""
    values = {
        "model.width": 16,
        "model.num_layers": 1,
        "model.num_heads": 2,
        "data.path": str(text),
        "data.split": "first",
        "data.length": 16,
        "data.batch_size": 4,
        "budget.amount": 3,
        "checkpoint.every_steps": 2,
        "log.tensorboard": False,
        "eval.tokens": 256,
        "eval.bootstrap": 50,
        "eval.multiples": (1,),
        "eval.throughput.repeats": 1,
        "eval.throughput.new_tokens": 2,
    }
    config = base.get_config()
    cli.apply(config, values)
    folder = tmp_path_factory.mktemp("run")
    trainer.train(config, folder, quiet=True)
    return folder


def test_every_evaluation_writes_its_file(workdir: Path):
    result = command.evaluate(workdir)
    assert list(result) == ["loss", "retrieval", "throughput", "memory"]
    for name in result:
        written = read_json(workdir / "eval" / f"{name}.json")
        assert written["schema"] == 1 and written["eval"] == name and written["step"] == 3  # the newest checkpoint
        assert written["seconds"] > 0 and written["settings"]["bootstrap"] == 50
        assert written == json.loads(json.dumps(result[name]))
    assert result["loss"]["loss"] > 0 and result["loss"]["by_length"][0]["scaling"] == "trained"


def test_settings_change_the_evaluation_and_nothing_else(workdir: Path):
    before = (workdir / "config.json").read_bytes()
    changed = {"multiples": (2,), "scalings": ("linear",), "batch_size": 2}
    entries = command.evaluate(workdir, ["loss"], changed)["loss"]["by_length"]
    assert [(entry["multiple"], entry["scaling"]) for entry in entries] == [(2, "trained"), (2, "linear")]
    assert read_json(workdir / "eval" / "loss.json")["settings"]["multiples"] == [2]
    assert (workdir / "config.json").read_bytes() == before


def test_another_kv_storage_is_measured_where_asked(workdir: Path):
    """2 (keys and values) x 2 heads x 8: 4 bytes each, or 1 and a scale of 4 a head."""
    sizes = {}
    for storage in ("model", "int8"):
        result = command.evaluate(workdir, ["memory"], {"kv_storage": storage})["memory"]
        assert result["settings"]["kv_storage"] == storage
        sizes[storage] = (result["formula"]["kv_bytes_per_token"], result["compiled"]["decode"]["argument"])
    assert (sizes["model"][0], sizes["int8"][0]) == (128, 48)
    assert sizes["model"][1] - sizes["int8"][1] == 18 * (128 - 48)  # the compiled program's own arrays


def test_an_unknown_evaluation_is_answered_with_the_nearest(workdir: Path):
    with pytest.raises(
        UserError, match=r"'retreival' is not an evaluation.*loss, retrieval, .*did you mean retrieval\?"
    ):
        command.evaluate(workdir, ["loss", "retreival"])


def test_mistakes_are_found_before_a_checkpoint_is_read(workdir: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(command.runs, "load", lambda *_: pytest.fail("read the checkpoint"))
    with pytest.raises(UserError, match=r"eval\.scaling"):
        command.evaluate(workdir, ["loss"], {"scaling": ("yarn",)})
    with pytest.raises(UserError, match="yarnn"):
        command.evaluate(workdir, ["loss"], {"scalings": ("yarnn",)})
    with pytest.raises(UserError, match="not a run directory"):
        command.evaluate(tmp_path, ["loss"])


def test_only_evaluation_can_be_changed(workdir: Path):
    with pytest.raises(UserError, match=r"--config.model.num_heads: the run is trained"):
        command.main([f"--workdir={workdir}", "--config.model.num_heads=4"])
    with pytest.raises(UserError, match="is empty"):
        command.main([f"--workdir={workdir}", "--evals=,"])


def test_the_command_fails_in_one_line(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "eval.run", f"--workdir={tmp_path}", "--evals=los"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean loss?" in done.stderr


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys):
    message = progress.Reporter(every=0.0)
    assert list(message.track("loss", range(3))) == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("loss: 1 of 3, ") and lines[-1].startswith("loss: 3 of 3")
    assert list(progress.Quiet().track("loss", iter("ab"))) == ["a", "b"]


def test_a_folder_in_the_place_of_a_result_is_told_in_a_line(tmp_path) -> None:
    (tmp_path / "eval/loss.json/full").mkdir(parents=True)
    run = SimpleNamespace(workdir=tmp_path, config=base.get_config(), step=1)
    with pytest.raises(UserError, match=r"eval/loss\.json: cannot be written: Is a directory"):
        command.record(run, "loss", {"loss": 1.0}, 0.1, progress.Quiet())
    assert [path.name for path in (tmp_path / "eval").iterdir()] == ["loss.json"], "and no half of one is left"
