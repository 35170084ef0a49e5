"""Folders: the compilation cache is its user's alone, names and links lead nowhere else, data sets bring no code."""

import json
import sys
from pathlib import Path

import pytest

from configs import base, folders
from configs.errors import UserError
from data import tfds_sets
from data.documents import Document
from sweeps.store import state
from tests.training.conftest import make_tiny, text
from training.loop import trainer
from training.run_directory import files
from training.runtime import compilation

__all__ = ["make_tiny", "text"]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777, 0o720])
def test_a_compilation_cache_that_others_may_enter_is_refused(tmp_path, monkeypatch, mode) -> None:
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path))
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled").chmod(mode)
    with pytest.raises(
        UserError, match=rf"compiled: the compilation cache must be open .*0700, is {mode:04o}.*chmod 700"
    ):
        compilation.enable_cache()


def test_one_of_another_user_is_refused_and_ours_is_made_private(tmp_path, monkeypatch) -> None:
    made = folders.private(tmp_path / "new" / "compiled", "the compilation cache")
    assert made.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: made.stat().st_uid + 1)
    with pytest.raises(UserError, match=r"must be its user's own; this folder belongs to user \d+"):
        folders.private(made, "the compilation cache")


@pytest.mark.parametrize("arm", ["../..", "..", "a/b", "/etc", ".hidden", "", "a\n", None, "nul\0"])
def test_an_arms_name_in_somebodys_sweep_json_leads_nowhere_else(tmp_path, arm) -> None:
    study = {"name": "s", "arms": [{"name": arm, "config": base.get_config().to_dict()}], "seeds": [0], "evals": []}
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "x", "studies": [study]}))
    with pytest.raises(UserError, match=r"is not safe as a folder|arms\[0\].name = "):
        state.run_states(tmp_path)
    study["arms"][0]["name"] = "fine@learning_rate=0.003"
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "x", "studies": [study | {"seeds": ["0/../../.."]}]}))
    with pytest.raises(UserError, match=r"studies\[0\].seeds is not a list of int"):
        state.run_states(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "tokenizer", "eval"])
def test_nothing_is_written_through_a_link_that_leads_out_of_a_run_directory(make_tiny, tmp_path, name) -> None:
    outside, workdir = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    workdir.mkdir()
    (workdir / name).symlink_to(outside)
    with pytest.raises(
        UserError, match=rf"run/{name}: is a symlink to .*outside, outside; refusing to write through it"
    ):
        trainer.train(make_tiny(), workdir, quiet=True)
    assert not list(outside.iterdir())


def test_a_link_within_is_followed(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "eval").symlink_to(tmp_path / "real")
    files.own(tmp_path, "eval", "missing")


def test_a_data_set_brings_no_code(tmp_path, monkeypatch) -> None:
    """TFDS imports the module of any class that features.json names."""
    texts = [Document("n", "text")]
    tfds_sets.write(tmp_path / "data", {"train": lambda: texts, "validation": lambda: texts})
    code = tmp_path / "code"
    code.mkdir()
    (code / "brought_along.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(code))
    assert tfds_sets.find("ablax_text", str(tmp_path / "data"), "text").label == "ablax_text:1.0.0"
    path = next((tmp_path / "data").rglob("features.json"))
    path.write_text(
        path.read_text().replace("tensorflow_datasets.core.features.text_feature.Text", "brought_along.Text", 1)
    )
    with pytest.raises(UserError, match=r"features.json names the class brought_along.Text, which is not part of TFDS"):
        tfds_sets.find("ablax_text", str(tmp_path / "data"), "text")
    assert not (tmp_path / "executed").exists() and "brought_along" not in sys.modules


def test_the_caches_of_these_tests_are_private_too() -> None:
    assert Path(folders.cache_dir() / "compiled").stat().st_mode & 0o077 == 0
