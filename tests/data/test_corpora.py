"""Corpora from files: what trains, what validates, what identifies them, and each mistake told with its place."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from configs.errors import UserError
from data import corpora, documents, sources
from data.sources import prepared
from tests.data.common import open_texts, settings, words, write

TEXTS: dict[str, str | bytes] = {f"folder{i % 3}/{i}.txt": f"{i} " + words(i, 20 + i) for i in range(24)}


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def everything(corpus: corpora.Corpus) -> list[str]:
    return [*corpus.train, *corpus.validation]


def test_a_glob_of_text_files(tmp_path):
    write(tmp_path / "in", {**TEXTS, "other.md": "not this one", ".hidden.txt": "nor this"})
    corpus = open_texts(tmp_path / "in/**/*.txt", tmp_path / "cache", data__train_share=0.7)
    assert sorted(everything(corpus)) == sorted(TEXTS.values())
    assert 0 < len(corpus.validation) < len(corpus.train)
    assert not set(corpus.train) & set(corpus.validation)
    about = corpus.fingerprint
    assert (about["source"], about["files"]) == ("files", 24)
    assert about["bytes"] == sum(len(text) for text in TEXTS.values()) == sum(about["text_bytes"].values())
    assert about["documents"] == {"train": len(corpus.train), "validation": len(corpus.validation)}
    in_order = "".join(str(TEXTS[name]) for name in sorted(TEXTS))
    assert about["sha256"] == hashlib.sha256(in_order.encode()).hexdigest()


def test_documents_have_random_access(tmp_path):
    write(tmp_path / "in", TEXTS)
    train = open_texts(tmp_path / "in/**/*.txt", tmp_path / "cache").train
    texts = list(train)
    assert [train[i] for i in range(len(train))] == texts
    assert train[-1] == texts[-1] and train[2:7:2] == texts[2:7:2] and train[5:5] == []
    with pytest.raises(IndexError):
        train[len(train)]


def test_the_hash_split_keeps_documents_where_they_are_when_files_are_added(tmp_path):
    names = [f"{i}.txt" for i in range(200)]
    before = dict(zip(names[:100], documents.split_by_hash(names[:100], 0.8), strict=True))
    after = dict(zip(names, documents.split_by_hash(names, 0.8), strict=True))
    assert all(after[name] == where for name, where in before.items())
    assert 0.7 < sum(after.values()) / 200 < 0.9
    for count in range(2, 30):
        assert set(documents.split_by_hash(names[:count], 0.99)) == {True, False}
        assert set(documents.split_by_hash(names[:count], 0.01)) == {True, False}


def test_the_first_split_cuts_the_text_at_a_character(tmp_path):
    text = "\u00e9" * 50 + words(0, 100) + "\r\n\ufeff"
    write(tmp_path, {"input.txt": text})
    corpus = open_texts(tmp_path / "input.txt", tmp_path / "cache", data__split="first")
    (train,), (validation,) = corpus.train, corpus.validation
    assert (train, validation) == (text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :])
    assert corpus.fingerprint["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert corpus.fingerprint["split"] == {"kind": "first", "train_share": 0.9}


def test_the_first_split_over_several_files_cuts_one_of_them(tmp_path):
    write(tmp_path, {"a.txt": "a" * 40, "b.txt": "b" * 40, "c.txt": "c" * 20})
    corpus = open_texts(tmp_path / "*.txt", tmp_path / "cache", data__split="first", data__train_share=0.7)
    assert list(corpus.train) == ["a" * 40, "b" * 30]
    assert list(corpus.validation) == ["b" * 10, "c" * 20]


def test_one_file_with_the_hash_split_is_cut(tmp_path):
    write(tmp_path, {"a.txt": words(0, 100)})
    corpus = open_texts(tmp_path / "a.txt", tmp_path / "cache")
    assert "".join(everything(corpus)) == words(0, 100)
    assert corpus.fingerprint["split"]["kind"] == "first"


def test_exact_duplicates_are_dropped(tmp_path):
    write(tmp_path, {**TEXTS, "copy.txt": TEXTS["folder0/0.txt"], "copy2.txt": TEXTS["folder0/0.txt"], "empty.txt": ""})
    corpus = open_texts(tmp_path / "**/*.txt", tmp_path / "cache")
    assert sorted(everything(corpus)) == sorted(TEXTS.values())
    assert (corpus.fingerprint["duplicates"], corpus.fingerprint["skipped"]) == (2, 1)


def test_a_file_matched_twice_is_one_file(tmp_path):
    write(tmp_path, {"x/y/a.txt": words(0, 50), "x/b.txt": words(1, 50)})
    corpus = open_texts(tmp_path / "**/**/*.txt", tmp_path / "cache")
    assert corpus.fingerprint["files"] == len(everything(corpus)) == 2


def test_json_lines(tmp_path):
    records = [{"body": words(i, 5) + " \u00e9\n" + str(i), "n": i} for i in range(30)]
    text = lines(*records[:10]) + "\n  \n" + lines({"body": ""}, *records[10:]).rstrip("\n")
    write(tmp_path, {"d.jsonl": text})
    corpus = open_texts(tmp_path / "d.jsonl", tmp_path / "cache", data__field="body")
    assert sorted(everything(corpus)) == sorted(record["body"] for record in records)
    assert len(corpus.validation) > 0 and corpus.fingerprint["split"]["kind"] == "hash"


def test_text_and_json_lines_together(tmp_path):
    write(tmp_path, {"a.txt": "one text", "b.jsonl": lines({"text": "two"}, {"text": "three"})})
    corpus = open_texts(tmp_path / "*", tmp_path / "cache")
    assert sorted(everything(corpus)) == ["one text", "three", "two"]


RECORDS = [{"id": i, "text": f"line {i} of a small corpus " * 3} for i in range(12)]


HELD = {
    "lines": lines(*RECORDS),
    "lines and blanks": "\n" + lines(*RECORDS[:6]) + "\r\n" + lines(*RECORDS[6:]),
    "array": json.dumps(RECORDS),
    "indented array": json.dumps(RECORDS, indent=2),
}


@pytest.mark.parametrize("text", HELD.values(), ids=HELD)
def test_json_that_holds_documents_is_read_as_documents(tmp_path, text):
    write(tmp_path, {"d.json": text})
    corpus = open_texts(tmp_path / "d.json", tmp_path / "cache")
    assert sorted(everything(corpus)) == sorted(record["text"] for record in RECORDS)
    assert sum(corpus.fingerprint["documents"].values()) == len(RECORDS)


def test_json_lines_are_the_same_documents_under_either_name(tmp_path):
    write(tmp_path, {"d.json": lines(*RECORDS), "d.jsonl": lines(*RECORDS), "d.ndjson": lines(*RECORDS)})
    opened = [open_texts(tmp_path / f"d.{suffix}", tmp_path / "cache") for suffix in ("json", "jsonl", "ndjson")]
    assert [sorted(everything(corpus)) for corpus in opened] == [sorted(record["text"] for record in RECORDS)] * 3


@pytest.mark.parametrize("text", [
    json.dumps({"name": "a package", "numbers": [1, 2]}, indent=2), '{"name": "a package"}\n', "[1, 2, 3]\n", "[]\n",
    json.dumps([{"body": "a"}, {"text": "b"}]), '{"text": "cut', '"text"\n"text"\n', "[" * 100_000,
])  # fmt: skip
def test_other_json_is_text_as_it_stands(tmp_path, text):
    write(tmp_path, {"d.json": text + words(0, 30) if text.startswith("[[") else text})
    (file,) = documents.matching_files(str(tmp_path / "d.json"))
    (document,) = documents.read_text(file, "text")
    assert document.text.startswith(text) and document.name == "d.json"


def test_one_object_on_one_line_is_a_document_where_it_has_the_field(tmp_path):
    write(tmp_path, {"d.json": lines({"text": "one text"})})
    (file,) = documents.matching_files(str(tmp_path / "d.json"))
    assert [document.text for document in documents.read_text(file, "text")] == ["one text"]


LONG = "[" * 100_000


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({}, "*.txt", r"data\.path = .*/\*\.txt': no file matches"),
        ({}, "none.txt", "none.txt': no file matches"),
        ({"x/a.txt": "text"}, "x", r"is a folder; set a glob such as .*x/\*\*/\*\.txt"),
        ({"a.txt": ""}, "a.txt", r"data\.path = .*a\.txt': the file has no text"),
        ({"a.txt": "", "b.txt": ""}, "*.txt", "2 files have no text"),
        ({"a.txt": "x"}, "a.txt", "the train split is empty .* more text is needed"),
        ({"a.txt": b"fine\n\xff more"}, "a.txt", r"a\.txt: is not valid UTF-8 at byte offset 5 \(invalid start byte\)"),
        ({"a.txt": "text", "b.txt": b"\xc3\xa9\xc3"}, "*.txt", r"b\.txt: is not valid UTF-8 at byte offset 2"),
        ({"a.jsonl": b'{"text": "a"}\n{"text": "\xff"}\n'}, "*", r"a\.jsonl: is not valid UTF-8 at byte offset 24"),
        ({"a.jsonl": '{"text": "a"}\n\n{"text": \n'}, "*", r"a\.jsonl, line 3: is not valid JSON \(.* at column 10\)"),
        ({"a.jsonl": '{"text": "a"}\n["text"]\n'}, "*", r"a\.jsonl, line 2: must be a JSON object, is list"),
        ({"a.jsonl": '{"body": "a", "n": 1}\n'}, "*", r"line 1: has no field 'text' \(data\.field\); it has body, n"),
        ({"a.jsonl": '{"text": "a"}\n{"text": 3}\n'}, "*", "line 2: field 'text' must be text, is int"),
        ({"a.jsonl": '{"text": "\\ud800"}\n'}, "*", "line 1: field 'text' has an unpaired surrogate"),
        (
            {"a.json": '{"body": "a"}\n{"body": "b"}\n'},
            "*",
            r"a\.json, line 1: has no field 'text' \(data\.field\); it has",
        ),
        ({"a.json": '{"text": "a"}\n{"text": \n'}, "*", r"a\.json, line 2: is not valid JSON"),
        (
            {"a.json": '[{"text": "a"}, {"text": "\\ud800"}]\n'},
            "*",
            r"a\.json, object 2: field 'text' has an unpaired surr",
        ),
        ({"a.jsonl": LONG + "\n"}, "*", "line 1: cannot be read as JSON"),
        ({"a.jsonl": '{"n": ' + "1" * 5000 + "}\n"}, "*", "line 1: cannot be read as JSON"),
    ],
)
def test_mistakes(tmp_path, files, path, message):
    write(tmp_path / "in", files)
    with pytest.raises(UserError, match=message) as error:
        open_texts(tmp_path / "in" / path, tmp_path / "cache")
    assert "\n" not in str(error.value)
    assert not [result for result in (tmp_path / "cache").rglob("*") if result.is_dir() and result.name != "corpora"]


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    write(tmp_path, {"a.txt": words(0, 30)})

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"a\.txt: cannot be read \(Permission denied\)"):
        open_texts(tmp_path / "a.txt", tmp_path / "cache")


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = write(tmp_path, {"a.txt": words(0, 30)}) / "a.txt"
    (file,) = documents.matching_files(str(path))
    path.write_text(words(1, 30))
    with pytest.raises(UserError, match=r"a\.txt: changed while it was being read"):
        list(documents.read_text(file, "text"))


def test_a_file_that_changes_between_planning_and_writing(tmp_path, monkeypatch):
    path = write(tmp_path, {"a.txt": words(0, 30)}) / "a.txt"
    plan = prepared._plan

    def planned(*args):
        result = plan(*args)
        path.write_text(words(1, 30))
        return result

    monkeypatch.setattr(prepared, "_plan", planned)
    with pytest.raises(UserError, match="changed while it was being read"):
        open_texts(path, tmp_path / "cache")


def test_changed_content_is_another_corpus_and_equal_content_the_same(tmp_path):
    first = write(tmp_path / "one", TEXTS)
    second = write(tmp_path / "two", TEXTS)
    before = open_texts(first / "**/*.txt", tmp_path / "cache")
    elsewhere = open_texts(second / "**/*.txt", tmp_path / "cache2")
    assert (before.key, before.fingerprint) == (elsewhere.key, elsewhere.fingerprint)
    other = str(TEXTS["folder0/0.txt"])[:-1] + "!"  # of the same size
    (first / "folder0/0.txt").write_text(other)
    after = open_texts(first / "**/*.txt", tmp_path / "cache")
    assert after.key != before.key
    assert after.fingerprint["sha256"] != before.fingerprint["sha256"]
    assert after.fingerprint["documents_sha256"] != before.fingerprint["documents_sha256"]
    assert other in everything(after) and other not in everything(before)
    assert open_texts(second / "**/*.txt", tmp_path / "cache", data__train_share=0.5).key != before.key


def test_few_files_are_listed_without_the_machines_folders(tmp_path):
    write(tmp_path / "in", {"a.txt": "one text", "x/b.txt": "two texts"})
    about = open_texts(tmp_path / "in/**/*.txt", tmp_path / "cache").fingerprint
    assert [(file["name"], file["bytes"]) for file in about["listing"]] == [("a.txt", 8), ("x/b.txt", 9)]
    assert str(tmp_path) not in json.dumps(about)


def test_the_built_in_corpus(tmp_path):
    corpus = sources.open_data(settings().data)
    about = corpus.fingerprint
    assert (
        about["source"] == "stdlib" and about["text_bytes"]["train"] > 5e6 and about["text_bytes"]["validation"] > 1e5
    )
    assert len(set(corpus.train) | set(corpus.validation)) == len(corpus.train) + len(corpus.validation)
    names = [file.name for file in documents.stdlib_files()]
    assert "json/decoder.py" in names and len(names) > 300
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "site-packages", "dist-packages", "__pycache__", "idle_test"}
    assert not any(name.startswith(("_sysconfigdata", "/", "..")) for name in names)
    assert not any("class TestCase" in text and "import unittest" in text for text in corpus.validation)
    assert json.dumps(about).count("/") == 0, "no path of this machine"
    again = sources.open_data(settings(data__cache_dir=str(tmp_path)).data)
    assert (again.key, again.fingerprint) == (corpus.key, about)
    assert list(again.validation) == list(corpus.validation)


def test_sources_that_cannot_be_decoded_are_left_out(tmp_path):
    write(
        tmp_path,
        {"a.py": b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "b.py": b"x = '\xe9'\n", "c.py": b"# coding: none\n"},
    )
    files = documents.matching_files(str(tmp_path / "*.py"))
    assert [[d.text for d in documents.read_python(file)] for file in files] == [
        ["# -*- coding: latin-1 -*-\nx = '\u00e9'\n"],
        [],
        [],
    ]


def test_a_python_without_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UserError, match=r"no standard library sources in .* set data\.path"):
        sources.open_data(settings(data__cache_dir=str(tmp_path)).data)


def test_a_change_that_keeps_size_and_times_is_seen(tmp_path):
    folder = write(tmp_path / "in", {f"{i}.txt": words(i, 40) for i in range(8)})
    before = open_texts(folder / "*.txt", tmp_path / "cache")
    path = folder / "3.txt"
    times = path.stat()
    path.write_text(path.read_text(encoding="utf-8").upper(), encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = open_texts(folder / "*.txt", tmp_path / "cache")
    assert after.key != before.key
    assert words(3, 40).upper() in [*after.train, *after.validation]
    assert words(3, 40) not in [*after.train, *after.validation]


def apart(folder: Path, **overrides: object) -> corpora.Corpus:
    write(folder, {"in/a.txt": "one", "in/b.txt": "two", "in/c.txt": "one", "held/a.txt": "one", "held/b.txt": "six"})
    held = {"data__validation_path": str(folder / "held/*.txt")}
    return open_texts(folder / "in/*.txt", folder / "cache", **{**held, **overrides})


def test_a_validation_path_leaves_all_of_the_path_for_training(tmp_path, capsys):
    corpus = apart(tmp_path)
    assert (list(corpus.train), list(corpus.validation)) == (["one", "two"], ["one", "six"])
    about = corpus.fingerprint
    assert about["split"] == {"kind": "validation_path"} and about["documents"] == {"train": 2, "validation": 2}
    assert (about["files"], about["duplicates"], about["validation_in_train"]) == (5, 2, 1)
    assert "1 of the 2 validation documents are also in the train split, word for word" in capsys.readouterr().err
    assert corpus.key != apart(tmp_path, data__validation_path=str(tmp_path / "held/b.txt")).key
    with pytest.raises(UserError, match=r"1 of its 2 documents are also in data\.path = .* allows 40%"):
        apart(tmp_path, data__validation_in_train=0.4)
    with pytest.raises(UserError, match=r"data\.validation_path = .*: all its documents are also in data\.path = "):
        apart(tmp_path, data__validation_path=str(tmp_path / "held/a.txt"), data__validation_in_train=1.0)


def test_the_standard_library_is_read_once_a_process_and_again_where_it_changed(tmp_path, monkeypatch) -> None:
    for number in range(100):
        (tmp_path / f"m{number:03}.py").write_text(f"value = {number}\n")
    monkeypatch.setattr(documents.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    first, reading = documents.stdlib_files(), []
    original = documents._source_file
    monkeypatch.setattr(documents, "_source_file", lambda path, name: reading.append(name) or original(path, name))
    assert documents.stdlib_files() == first and not reading
    (tmp_path / "m007.py").write_text("value = 70\n")
    second = documents.stdlib_files()
    assert reading == ["m007.py"] and [one.name for one in second] == [one.name for one in first]
    assert second[7].sha256 != first[7].sha256 and second[:7] + second[8:] == first[:7] + first[8:]
