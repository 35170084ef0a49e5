"""An imported checkpoint's documents end with its eos token, wherever that is named, and the user is told which."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library

from configs.errors import UserError
from convert import from_hf, to_hf
from convert.writing import write_run
from data import sources, streams, tokenizers
from models import initialise
from tests.convert.conftest import config_of
from training.run_directory import run as runs

SPECIAL = ("<pad>", "<|bot|>", "<|eot|>", "<|call|>")
TEXTS = [f"text number {i}" for i in range(12)]


def tokenizer_of(special: tuple[str, ...]) -> tokenizers.FromFile:
    """Returns byte-level BPE without merges, whose first ids are special tokens."""
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*special, *letters])}
    made = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return tokenizers.FromFile(made.to_str())


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    tokenizer_of(SPECIAL).save(folder / "tokenizer")
    config = config_of(model__vocab_size=288, model__num_heads=2, model__num_layers=1)
    write_run(folder / "run", config, initialise(config.model, 0)[1], tokenizer_from=folder / "tokenizer", origin={})
    to_hf.export(folder / "run", folder / "checkpoint")
    return folder / "checkpoint"


@pytest.fixture
def imported(exported: Path, tmp_path: Path) -> Callable[..., Path]:
    """Imports the checkpoint with an eos_token_id in config.json, another in generation_config.json, other tokens."""

    def make(in_config: Any = None, generation: Any = None, special: tuple[str, ...] = SPECIAL) -> Path:
        source = shutil.copytree(exported, tmp_path / "checkpoint")
        values = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(values | {"eos_token_id": in_config}))
        if generation is not None:
            (source / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        tokenizer_of(special).save(source)
        return from_hf.convert(source, tmp_path / "run")

    return make


USUAL = ("<pad>", "<|endoftext|>", "<|im_end|>", "<|call|>")


@pytest.mark.parametrize(
    ("given", "expected", "message"),
    [
        (dict(in_config=2), 2, "documents end with '<|eot|>' (2), eos_token_id of config.json"),
        (dict(in_config=[3, 2]), 3, "documents end with '<|call|>' (3), eos_token_id of config.json"),
        (dict(generation=2), 2, "documents end with '<|eot|>' (2), eos_token_id of generation_config.json"),
        (dict(in_config=[], generation=[2, 3]), 2, "'<|eot|>' (2), eos_token_id of generation_config.json"),
        (dict(in_config=2, generation=3), 2, "eos_token_id of config.json"),
        (dict(in_config=287), 287, "documents end with token 287, eos_token_id of config.json"),
        (dict(in_config=999, generation=3), 3, "'<|call|>' (3), eos_token_id of generation_config.json"),
        # of several the one of a usual name, else what the checkpoint says counts more than a name
        (dict(in_config=[3, 2, 1], special=USUAL), 1, "documents end with '<|endoftext|>' (1), eos_token_id of config"),
        (dict(in_config=2, special=USUAL), 2, "'<|im_end|>' (2), eos_token_id of config.json, not with '<|end"),
        (dict(special=USUAL), 1, "documents end with '<|endoftext|>' (1), by its name; config.json has no eos"),
    ],
)  # fmt: skip
def test_the_checkpoints_eos_separates_documents(imported, capsys, tmp_path, given, expected, message) -> None:
    workdir = imported(**given)
    out = capsys.readouterr().out
    assert message in out and out.count("documents end with") == 1
    run = runs.load(workdir)
    assert run.tokenizer.separator == expected
    # what evaluation restores and what training reads are the same
    text = tmp_path / "d.jsonl"
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXTS))
    run.config.data.update({"path": str(text), "cache_dir": str(tmp_path / "cache")})
    again = tokenizers.load(run.config.data, None)
    assert again.describe() == run.tokenizer.describe()
    stream = streams.open_stream(sources.open_data(run.config.data), again, "train")
    ends = np.asarray(stream.tokens)[stream.starts[1:] - 1]
    assert stream.separated and len(ends) > 5 and set(ends.tolist()) == {expected}
    assert (np.asarray(stream.tokens) == expected).sum() == len(ends), "and nowhere else"


def test_it_survives_what_is_made_of_the_run(imported, tmp_path) -> None:
    run = runs.load(imported(in_config=3))
    run.tokenizer.save(tmp_path / "trained" / "tokenizer")
    assert tokenizers.restore(tmp_path / "trained" / "tokenizer").separator == 3
    to_hf.export(run.workdir, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"] == 3
    assert runs.load(from_hf.convert(tmp_path / "out", tmp_path / "back")).tokenizer.separator == 3


def test_a_checkpoint_without_any(imported, capsys) -> None:
    assert runs.load(imported()).tokenizer.separator is None
    assert "has no eos_token_id, and no token has a usual name" in capsys.readouterr().err


def test_an_id_outside_the_vocabulary_is_passed_over(imported, capsys) -> None:
    assert runs.load(imported(in_config=-1)).tokenizer.separator is None
    assert "eos_token_id = -1: is not one of the model's 288 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["2", 2.0, True, [2, "3"], {"id": 2}])
def test_what_is_no_id_is_refused(imported, tmp_path, given) -> None:
    with pytest.raises(UserError, match=r"config\.json: eos_token_id = .*: must be a whole number, or a list of them"):
        imported(in_config=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("separator", ['"2"', "-1", "true", "2.5"])
def test_a_spoilt_description_is_refused(tmp_path, separator) -> None:
    tokenizer_of(SPECIAL).save(tmp_path)
    (tmp_path / tokenizers.DESCRIPTION).write_text('{"kind": "file", "separator": ' + separator + "}")
    with pytest.raises(UserError, match="separator = "):
        tokenizers.restore(tmp_path)
