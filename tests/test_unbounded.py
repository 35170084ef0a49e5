"""Input that asks for work without measure, or has names that are no text, is refused in a line before any work."""

import base64
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import tokenizers as library

import train
from configs import base, cli, validate
from configs.errors import ConfigError, UserError
from convert import from_hf
from data import documents, tokenizers
from tests.test_mistakes import VECTOR, config_file, refused


@pytest.mark.parametrize("field", ["model.num_layers", "model.num_heads", "model.num_kv_heads"])
def test_a_billion_layers_or_heads_are_refused_at_once(tmp_path, field) -> None:
    config = base.get_config()
    cli.apply(config, {field: 10**9})
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=rf"{field} = 1000000000: must be above 0 and at most \d+"):
        validate.check(config)
    said = refused(train.main, config_file(tmp_path), f"--config.{field}=1000000000", f"--workdir={tmp_path / 'r'}")
    assert "and at most" in said and time.perf_counter() - began < 10
    cli.apply(config, {"model.num_layers": 1000, "model.num_heads": 4, "model.num_kv_heads": 4})
    validate.check(config)


def test_a_checkpoint_of_a_billion_layers_is_refused_at_once(tmp_path) -> None:
    shutil.copytree(VECTOR, tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    for key in ("num_hidden_layers", "n_layer"):
        values = json.loads((VECTOR / "config.json").read_text())
        path.write_text(json.dumps(values | {key: 10**9}))
        said = refused(from_hf.main, f"--from={tmp_path / 'hf'}", f"--workdir={tmp_path / 'run'}")
        assert f"{key} = 1000000000: must be at most" in said


def tokenizer(**changes) -> str:
    """A tokenizer.json of words, with parts replaced."""
    made = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    return json.dumps(json.loads(made.to_str()) | changes)


def replace(pattern: dict[str, str], content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


CHARSMAP = base64.b64encode(bytes(4) + b"b\0" + b"a" * 1000 + b"\0").decode()
DOUBLING = {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 40}
ADDED = {"content": "x", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


@pytest.mark.parametrize("changes, message", [
    ({"model": {"type": "WordLevel", "vocab": {"a": 0, "far": 2**31}, "unk_token": "a"}}, "token id 2147483648"),
    ({"added_tokens": [{**ADDED, "id": 2**31}]}, "token id 2147483648"),
    ({"normalizer": DOUBLING}, "its normalizer can lengthen a text 1.1e[+]12 times"),
    ({"normalizer": replace({"String": "a"}, "a" * 10**6)}, "its normalizer can lengthen a text 1e[+]06 times"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}}, "can lengthen a text 1e[+]03 times"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AQAAAA=="}}, "is truncated: 4 bytes, expected"),
    ({"normalizer": {"type": "Prepend", "prepend": "a" * 100}}, "its normalizer can lengthen a text 101 times"),
    ({"normalizer": replace({"Regex": ""}, "a" * 100)}, "its normalizer can lengthen a text 101 times"),
    ({"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "aa")] * 40}}, "its decoder can lengthen"),
], ids=["far id", "far added", "doubling", "long", "charsmap", "cut", "prepend", "empty match", "decoder"])  # fmt: skip
def test_a_tokenizer_that_asks_for_work_without_measure_is_refused(tmp_path, changes, message) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer(**changes))
    with pytest.raises(UserError, match=f"is not a tokenizer.json .*{message}"):
        tokenizers.from_file(path)


SENTENCEPIECE = {
    "type": "Sequence",
    "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581"), {"type": "NFKC"}],
}


@pytest.mark.parametrize("changes", [
    {}, {"normalizer": SENTENCEPIECE}, {"normalizer": replace({"Regex": " {2,}"}, "\u2581")},
    {"decoder": replace({"String": "\u2581"}, " ")},
])  # fmt: skip
def test_tokenizers_as_they_are_in_use_are_taken(tmp_path, changes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer(**changes))
    assert tokenizers.from_file(path).vocab_size == 3


@pytest.mark.skipif(sys.platform != "linux", reason="file names elsewhere are text")
def test_names_that_are_not_utf8_are_told_in_a_line(tmp_path) -> None:
    for name in (b"\xff.txt", b"fine.txt"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("text " * 100)
    with pytest.raises(UserError, match=r"data.path: matches '.*\\udcff.txt', whose name is not UTF-8; rename it"):
        documents.matching_files(f"{tmp_path}/*.txt")
    assert len(documents.matching_files(f"{tmp_path}/f*.txt")) == 1
    workdir = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    said = refused(train.main, config_file(tmp_path), f"--workdir={workdir}")
    assert "--workdir: is not valid UTF-8 at character" in said and r"\udcff'" in said
