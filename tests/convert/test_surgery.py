"""The command: run directories that say where they come from, evaluate, and train on."""

from pathlib import Path

import numpy as np
import pytest

from configs import cli, validate
from configs.errors import UserError
from convert import heads, surgery
from eval.variants import variants
from training.loop import trainer
from training.run_directory import run as runs
from training.run_directory.checkpoint import flat
from training.run_directory.files import read_json


def arrays(workdir: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in flat(runs.load(workdir).params).items()}


def call(*options: str) -> None:
    surgery.main([str(option) for option in options])


def test_key_value_heads_are_joined_and_the_run_trains_on(saved, tmp_path: Path, capsys) -> None:
    source, new = saved(data__curriculum=({"steps": 1, "length": 8},)), tmp_path / "new"
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    call("kv_heads", f"--from={source}", f"--workdir={new}", "--num_kv_heads=2", "--config.budget.amount=1")
    assert capsys.readouterr().out == f"{new}: num_heads 4, num_kv_heads 2, scaling none, length 16\n"
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    run, info = runs.load(new), read_json(new / "run.json")
    expected = heads.grouped(runs.load_config(source).model, arrays(source), 2)[1]
    assert all((x == expected[name]).all() for name, x in arrays(new).items())
    assert run.tokenizer.describe() == runs.load(source).tokenizer.describe()
    assert run.config.data.curriculum == ()
    done = {"operation": "kv_heads", "num_kv_heads": 2, "from_kv_heads": 4, "pool": "mean"}
    assert info["origin"] == {
        "kind": "surgery", "from": str(source), "step": 0, **done, "source_origin": {"kind": "test"}
    }  # fmt: skip
    assert info["kv_bytes_per_token"] == read_json(source / "run.json")["kv_bytes_per_token"] // 2

    # The plainest way on: its own config, which names where to start from.
    further = cli.load(new / "config.json", {"optimizer.learning_rate": 1e-12})
    validate.check(further)
    assert trainer.train(further, tmp_path / "up", quiet=True)["status"] == "done"
    for name, x in arrays(tmp_path / "up").items():
        np.testing.assert_allclose(x, expected[name], atol=1e-6)
    # With the old architecture it does not begin.
    old = cli.load(source / "config.json", {"init_from": str(new), "data.curriculum": ()})
    with pytest.raises(UserError, match=r"init_from = .*: model.num_kv_heads is 2 there and 4 here"):
        trainer.train(old, tmp_path / "old", quiet=True)


def test_another_scaling_leaves_the_parameters_and_is_that_of_evaluation(saved, tmp_path: Path) -> None:
    source = saved()
    call("rope", f"--from={source}", f"--workdir={tmp_path / 'yarn'}", "--scaling=yarn", "--length=64")
    before, after = arrays(source), arrays(tmp_path / "yarn")
    assert all((after[name] == x).all() for name, x in before.items())
    config = runs.load_config(tmp_path / "yarn")
    scaling = config.model.position.rope.scaling
    assert (config.data.length, scaling.kind, scaling.factor, scaling.original_length) == (64, "yarn", 4.0, 16)
    measured = runs.load_config(source)
    measured.eval.multiples, measured.eval.scalings = (4,), ("yarn",)
    assert variants(measured)[-1].model == config.model
    # Again: what was chosen for the first scaling goes, the original length stays.
    options = ["--scaling=linear", "--config.model.position.rope.theta=5e4"]
    call("rope", f"--from={tmp_path / 'yarn'}", f"--workdir={tmp_path / 'linear'}", "--factor=2", *options)
    config = runs.load_config(tmp_path / "linear")
    scaling = config.model.position.rope.scaling
    assert (scaling.kind, scaling.factor, scaling.original_length, config.data.length) == ("linear", 2.0, 16, 64)
    assert config.model.position.rope.theta == 5e4
    call("rope", f"--from={tmp_path / 'yarn'}", f"--workdir={tmp_path / 'raw'}", "--scaling=none")
    assert runs.load_config(tmp_path / "raw").model.position.rope.scaling.factor == 1


def test_heads_are_masked_or_removed(saved, tmp_path: Path) -> None:
    source = saved()
    paths = (f"--from={source}", f"--workdir={tmp_path / 'masked'}")
    call("drop_heads", *paths, "--heads=0:1, 1:2,1:2")
    config, params = runs.load_config(source), arrays(source)
    expected = heads.masked(config.model, params, [(0, 1), (1, 2)])
    assert all((x == expected[name]).all() for name, x in arrays(tmp_path / "masked").items())
    origin = read_json(tmp_path / "masked" / "run.json")["origin"]
    assert (origin["heads"], origin["removed"]) == (["0:1", "1:2"], False)
    call("drop_heads", paths[0], f"--workdir={tmp_path / 'removed'}", "--heads=0:1,1:2", "--remove")
    smaller = runs.load(tmp_path / "removed")
    assert (smaller.config.model.num_heads, smaller.config.model.head_dim) == (3, 4)
    total = [read_json(path / "run.json")["parameters"]["attention"] for path in (source, tmp_path / "removed")]
    assert total[1] == total[0] * 3 // 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["kv_heads", "--num_kv_heads=3"], "num_kv_heads = 3: the run has 4; must be one of 1, 2"),
        (["kv_heads", "--num_kv_heads=2", "--pool=median"], "invalid choice: 'median'"),
        (["kv_heads", "--num_kv_heads=2", "--pool=random", "--seed=-1"], "seed = -1"),
        (["kv_heads", "--num_kv_heads=2", "--config.model.width=8"], r"config.model.width: .* no field of the model"),
        (["rope"], "nothing to change: set --scaling, --factor or --length"),
        (["rope", "--scaling=yarm", "--factor=2"], "--scaling=yarm: must be .* did you mean yarn?"),
        (["rope", "--scaling=yarn"], "--scaling=yarn: needs --factor, or --length"),
        (["rope", "--scaling=yarn", "--factor=0.5"], r"scaling.factor = 0.5: must be 1 or more"),
        (["rope", "--scaling=longrope", "--factor=2"], r"short_factor = \(\): longrope needs a number for each"),
        (["rope", "--length=0"], "data.length = 0: must be above 0"),
        (["rope", "--length=32", "--config.model.num_heads=2"], r"config.model.num_heads: .*scaling\.\*, .*theta"),
        (["drop_heads", "--heads=0-1"], "--heads: '0-1' is not layer:head"),
        (["drop_heads", "--heads="], "--heads: is empty"),
        (["drop_heads", "--heads=0:9"], "head 0:9: the run has layers"),
        (["drop_heads", "--heads=0:1", "--remove"], "layer 1: would keep 4 heads"),
        (["drop"], "invalid choice: 'drop'"),
    ],
    ids=str,
)
def test_mistakes_are_told_and_nothing_is_written(source: Path, tmp_path: Path, options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(options[0], f"--from={source}", f"--workdir={tmp_path / 'new'}", *options[1:])
    assert not any(tmp_path.iterdir())
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    with pytest.raises(UserError, match="already exists"):
        call("kv_heads", f"--from={source}", f"--workdir={tmp_path / 'new'}", "--num_kv_heads=2")


def test_positions_that_do_not_turn_have_no_scaling(saved, tmp_path: Path) -> None:
    source = saved(model__position__kind="learned")
    for options, message in [
        (
            ["--scaling=yarn", "--factor=2"],
            "model.position.kind = 'learned': a RoPE scaling applies only to rope or p_rope",
        ),
        (["--length=32"], "model.position.max_length = 16: the learned table must hold"),
    ]:
        with pytest.raises(UserError, match=message):
            call("rope", f"--from={source}", f"--workdir={tmp_path / 'new'}", *options)


def test_help_of_the_command_and_of_each_operation(capsys) -> None:
    for options, words in [(["--help"], "--num_kv_heads=2"), (["rope", "--help"], "--scaling KIND")]:
        with pytest.raises(SystemExit, match=r"^0$"):
            surgery.main(options)
        assert words in capsys.readouterr().out
