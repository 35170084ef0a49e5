"""Results of real runs: a corpus that was renamed is refused, a result names its run, a changed config is refused."""

import json
from pathlib import Path

import pytest

from configs import base, cli, provenance
from configs.errors import UserError
from eval import run as command
from training.loop import trainer

VALUES = {
    "model.width": 16, "model.num_layers": 1, "model.num_heads": 2, "data.length": 16, "data.batch_size": 4,
    "budget.amount": 3, "log.tensorboard": False, "eval.tokens": 256, "eval.bootstrap": 50, "eval.multiples": (1,),
}  # fmt: skip


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A run of three steps on sixty documents, split by a hash of their file's name and line."""
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": f"document {i} says {i * 7919 % 1000} " * 4}) for i in range(60)]
    (tmp_path / "corpus/part-0.jsonl").write_text("\n".join(lines) + "\n")
    config = base.get_config()
    cli.apply(config, VALUES | {"data.path": str(tmp_path / "corpus/*.jsonl")})
    trainer.train(config, tmp_path / "run", quiet=True)
    return tmp_path / "run"


def test_a_result_names_its_run_and_renamed_files_are_refused_as_the_trainer_does(workdir: Path) -> None:
    of = command.evaluate(workdir, ["loss"])["loss"]["of"]
    now = provenance.directory(workdir)
    assert of["run"] == now["run"] and of["step"] == 3 and of["checkpoint"] and of["checkpoint"] == now["checkpoint"]
    assert of["parents"] == [] and of["data"]["documents"] and of["question"]["eval.tokens"] == 256
    assert provenance.problem(workdir, "loss") == ""
    files = workdir.parent / "corpus"
    (files / "part-0.jsonl").rename(files / "train-00000.jsonl")
    with pytest.raises(UserError, match=r"was trained on other data.*documents and their split"):
        command.evaluate(workdir, ["loss"])
    (files / "train-00000.jsonl").rename(files / "part-0.jsonl")
    command.evaluate(workdir, ["loss"])
    path = workdir / "config.json"
    path.write_text(path.read_text().replace('"theta": 10000.0', '"theta": 500.0'))
    with pytest.raises(UserError, match=r"config.json is not what the run was trained with: model.position.rope.theta"):
        command.evaluate(workdir, ["loss"])
