"""What a user can get wrong with files: one line that names the file and the place."""

from pathlib import Path

import pytest

from configs.errors import UserError
from data import corpora, pipeline, tokenizers
from tests.data import helpers

CASES = {
    "no_match": ({}, "*.txt", {}, ["*.txt", "no file matches"]),
    "folder": ({"in/a.txt": b"text"}, "in", {}, ["is a folder", "in/**/*.txt"]),
    "empty": ({"a.txt": b""}, "*.txt", {}, ["*.txt", "no text"]),
    "all_empty": ({"a.txt": b"", "b.txt": b""}, "*.txt", {}, ["2 files hold no text"]),
    "one_byte": ({"a.txt": b"x"}, "a.txt", {}, ["a.txt", "split is empty", "1 characters"]),
    "utf8": ({"a.txt": b"good", "b.txt": b"0123456\xff89"}, "*.txt", {}, ["b.txt", "UTF-8", "offset 7"]),
    "jsonl_utf8": ({"a.jsonl": b'{"text": "a"}\n{"text": "\xff"}\n'}, "*.jsonl", {}, ["a.jsonl", "offset 24"]),
    "malformed": ({"a.jsonl": b'{"text": "a"}\n\n{"text": \n'}, "*.jsonl", {}, ["a.jsonl, line 3", "JSON"]),
    "no_object": ({"a.jsonl": b'["text"]\n'}, "*.jsonl", {}, ["a.jsonl, line 1", "object", "list"]),
    "no_field": ({"a.jsonl": b'{"text": "a"}\n{"body": "b"}\n'}, "*.jsonl", {}, ["line 2", "'text'", "body"]),
    "no_text": ({"a.jsonl": b'{"text": 3}\n'}, "*.jsonl", {}, ["line 1", "must be text", "int"]),
    "surrogate": ({"a.jsonl": b'{"text": "a\\ud800"}\n'}, "*.jsonl", {}, ["line 1", "surrogate"]),
    "digits": ({"a.jsonl": b'{"text": ' + b"9" * 5000 + b"}\n"}, "*.jsonl", {}, ["line 1", "JSON"]),
    "share": ({"a.txt": b"0123456789"}, "a.txt", {"data__train_share": 0.05}, ["train split is empty"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_message_names_the_place(tmp_path: Path, name: str) -> None:
    files, pattern, changes, words = CASES[name]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / pattern), **changes)
    with pytest.raises(UserError) as error:
        corpora.open_corpus(config.data)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)
    # What failed left no entry behind that a later call could take for data.
    left = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert left == []


def open_all(tmp_path: Path, text: str, **changes: object) -> None:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "a.txt"), **changes)
    corpus = corpora.open_corpus(config.data)
    tokenizer = tokenizers.load(config.data, corpus)
    pipeline.TrainStream(config, tokenizer, corpus)
    pipeline.validation(config, tokenizer, corpus, length=config.data.length, batch_size=2)


def test_a_text_shorter_than_a_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train split has 91 tokens.*data.length \+ 1 = 257"):
        open_all(tmp_path, "x" * 100)
    # The validation split may be shorter: it is one short row.
    open_all(tmp_path, "x" * 100, data__length=64)


def test_a_validation_split_of_one_token(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fewer than two tokens"):
        open_all(tmp_path, "x" * 10, data__length=4)


@pytest.mark.parametrize("content", [None, "{}", "no json", '{"model": {"type": "BPE"'])
def test_no_tokenizer_there(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json") as error:
        open_all(tmp_path, "x" * 100, data__tokenizer=str(tmp_path / "tokenizer.json"))
    assert "\n" not in str(error.value)


def test_a_run_directory_without_a_tokenizer(tmp_path: Path) -> None:
    for content in ("", "[]", '{"kind": "word"}', '{"kind": "file"}'):
        (tmp_path / tokenizers.DESCRIPTION).write_text(content, encoding="utf-8")
        with pytest.raises(UserError):
            tokenizers.restore(tmp_path)


def test_a_cache_that_others_can_write_to(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100, encoding="utf-8")
    folder = tmp_path / "cache" / "corpora"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="open to others"):
        corpora.open_corpus(config.data)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        corpora.open_corpus(helpers.config(tmp_path / "file", data__path=str(tmp_path / "a.txt")).data)
