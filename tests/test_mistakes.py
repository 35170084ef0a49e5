"""Users' mistakes that once got a traceback, another mistake's message, or something else than was asked."""

import json
import random
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import train
from configs import base, cli, fields, validate
from configs.errors import ConfigError, UserError
from convert import from_hf
from data import tokenizers
from eval import generate
from eval import run as evaluations
from eval.heads import per_head
from report import files
from sweeps.spec import expand
from tests.fuzz import __main__ as fuzz
from tests.fuzz import kinds, material, mutate
from training.run_directory import record
from training.run_directory.files import read_json, write_json

VECTOR = Path(__file__).parent / "convert" / "vectors" / "llama_gqa_llama3"


def refused(main: Callable[[list[str]], Any], *argv: str | Path) -> str:
    """Returns what a command says, which must be a user's error in a line."""
    outcome, said = fuzz.attempt(main, [str(argument) for argument in argv])
    assert outcome == "refused", said
    return said


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run directory, trained for two steps on a text beside it."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "words.txt").write_text(material.words())
    (folder / "preset.py").write_text(material.PRESET.format(path=str(folder / "words.txt")))
    train.main([f"--config={folder / 'preset.py'}", f"--workdir={folder / 'run'}", "--quiet", *material.flags()])
    return folder / "run"


def config_file(folder: Path, body: str = "", name: str = "it.py") -> str:
    path = folder / name
    lines = ["from configs import base", "", "", "def get_config():", "    config = base.get_config()", f"    {body}"]
    path.write_text("\n".join([*lines, "    return config", ""]))
    return f"--config={path}"


def test_config_files_that_cannot_be_taken(tmp_path: Path) -> None:
    workdir = f"--workdir={tmp_path / 'new'}"
    assert "it.py: line 6: SystemExit: 3" in refused(train.main, config_file(tmp_path, "raise SystemExit(3)"), workdir)
    huge = refused(train.main, config_file(tmp_path, "config.seed = 10**5000"), workdir)
    assert "seed: must be a whole number, is one of 16610 bits" in huge
    assert "is a folder without a config.json" in refused(train.main, f"--config={tmp_path}", workdir)
    assert "File name too long" in refused(train.main, f"--config={'a' * 3000}", workdir)
    with pytest.raises(ConfigError, match=r"learning_rate: must be a number, is one of 1329 bits"):
        fields.from_dict({"optimizer": {"learning_rate": 10**400}})
    assert "data.length = 2147483648: must be below 2**31" in refused(
        train.main, config_file(tmp_path), workdir, "--config.data.length=2147483648"
    )


@pytest.mark.parametrize("option", ["--workdir=", "--config="])
def test_a_variable_of_the_shell_that_was_not_set(tmp_path: Path, monkeypatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    given = [config_file(tmp_path), f"--workdir={tmp_path}", option]
    assert f"{option[:-1]}: is empty" in refused(train.main, *given)
    assert [path.name for path in tmp_path.iterdir()] == ["it.py"]
    assert "model.head_dim is empty: must be a whole number; None leaves" in refused(
        train.main, *given[:2], "--config.model.head_dim="
    )


def test_places_where_no_run_can_be(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    for place, message in (("it.py", "File exists; use another"), ("it.py/a", "Not a directory; use another")):
        assert message in refused(train.main, config, f"--workdir={tmp_path / place}")
    write_json(tmp_path / "sweep" / "sweep.json", {})
    assert "has a sweep (sweep.json), not a run" in refused(train.main, config, f"--workdir={tmp_path / 'sweep'}")
    assert not (tmp_path / "sweep" / "config.json").exists()


def test_a_run_whose_parts_no_longer_belong_together(trained: Path, tmp_path: Path) -> None:
    """Another text under the same name gave another loss, silently; the other two were tracebacks."""
    words = trained.parent / "words.txt"
    before = words.read_text()
    try:
        words.write_text(before + " and so on")
        for name in ("loss", "heads"):
            assert "was trained on other data; the data named in its config.json" in refused(
                evaluations.main, f"--workdir={trained}", f"--evals={name}"
            )
    finally:
        words.write_text(before)
    assert not (trained / "eval").exists()
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "tokenizer")
    assert "tokenizer: is missing" in refused(evaluations.main, f"--workdir={run}", "--evals=loss")
    config = read_json(run / "config.json")
    config["model"]["width"] = 32
    write_json(run / "config.json", config)
    message = refused(evaluations.main, f"--workdir={run}", "--evals=loss")
    assert "config.json is not what the run was trained with: model.width was 16, is now 32" in message
    info = read_json(run / "run.json")
    del info["identity"]  # a run from before identities were kept
    write_json(run / "run.json", info)
    message = refused(evaluations.main, f"--workdir={run}", "--evals=loss")
    assert "config.json: does not fit the checkpoint of step 2: " in message and "has shape (" in message


def test_a_prompt_that_is_no_utf8(trained: Path) -> None:
    assert "--prompt: is not valid UTF-8 at character 2" in refused(
        generate.main, f"--workdir={trained}", "--prompt=of\udcff"
    )


def test_checkpoints_with_what_is_no_number_or_may_not_be_read(tmp_path: Path) -> None:
    folder = shutil.copytree(VECTOR, tmp_path / "hf", copy_function=shutil.copy)
    given = (from_hf.main, f"--from={folder}", f"--workdir={tmp_path / 'run'}")
    assert "--ignore=novel: " in refused(*given, "--ignore=novel") and not (tmp_path / "run").exists()
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = np.nan
    save_file(weights, folder / "model.safetensors")
    assert "model.norm.weight[3] is nan, and 1 of its 48 numbers are not finite" in refused(*given)
    (folder / "model.safetensors").chmod(0)
    assert "model.safetensors: is not a safetensors file ([Errno 13] Permission denied" in refused(*given)


def test_a_field_that_is_fixed_and_an_axis(tmp_path: Path) -> None:
    """The axis was taken. A chain may still vary what is fixed in its other arms."""
    (tmp_path / "preset.py").write_text(material.PRESET.format(path="words.txt"))
    sweep: dict[str, Any] = {"name": "it", "base": str(tmp_path / "preset.py"), "fixed": {"model.num_heads": 4}}
    path = tmp_path / "sweep.py"
    path.write_text(kinds._as_python(sweep | {"axes": [{"model.num_heads": [1, 2]}]}))
    with pytest.raises(ConfigError, match=r"fixed: model\.num_heads is an axis too; remove one"):
        expand.load(path)
    path.write_text(kinds._as_python(sweep | {"axes": [{"chain": [{"model.num_heads": 1}, {"model.width": 32}]}]}))
    assert [arm.config.model.num_heads for arm in expand.load(path).studies[0].arms] == [1, 4]
    path.write_text("def get_sweep():\n    return dict(a=b)\n")
    with pytest.raises(UserError, match=r"sweep\.py: line 2: NameError"):
        expand.load(path)


def test_a_name_that_the_terminal_cannot_show() -> None:
    code = "from configs import cli; cli.main(lambda argv: print('runs/\\udcff'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.CHECKOUT, capture_output=True, env={"PYTHONIOENCODING": "ascii:strict"}
    )
    assert (done.returncode, done.stdout) == (0, b"runs/\\udcff\n"), done.stderr


def test_half_a_character_in_a_sweep_is_shown_with_escapes(tmp_path: Path) -> None:
    files.write(tmp_path / "index.html", "small.py\ud800")
    assert (tmp_path / "index.html").read_text() == r"small.py\ud800"


def test_tensors_are_spoilt_behind_a_header_that_is_read(tmp_path: Path) -> None:
    save_file({"a": np.ones(8, np.float32)}, tmp_path / "it.safetensors")
    content = (tmp_path / "it.safetensors").read_bytes()
    read = broken = 0
    for seed in range(60):
        corrupted, _ = mutate.tensors(random.Random(seed), content)
        size = int.from_bytes(corrupted[:8], "little")
        try:
            json.loads(corrupted[8 : 8 + size])
            read += 1
        except ValueError:
            broken += 1
    assert read > 50 > broken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "must be an object, not nan"),
        ('{"status": "done", "val_loss": 1.0, "error": null}', "declares the run done, but has no step"),
    ],
)
def test_a_run_json_that_is_none_is_named(tmp_path, text, message) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"{path}: {message}"):
        record.read(path)


def test_a_tokenizer_nested_without_end_is_none(tmp_path) -> None:
    (tmp_path / tokenizers.DESCRIPTION).write_text('{"kind":' * 100_000)
    with pytest.raises(UserError, match="has no tokenizer"):
        tokenizers.restore(tmp_path)


def test_a_run_whose_attention_is_nan_is_told_to_have_diverged() -> None:
    run = types.SimpleNamespace(workdir="w", config=validate.resolve(base.get_config()))
    with pytest.raises(UserError, match="w: its attention gives NaN"):
        per_head._refuse_other_maps(run, np.array([0.0, np.nan]))
