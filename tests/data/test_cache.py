import json
import multiprocessing
import os
import stat
import sys
from pathlib import Path

import pytest

from data import cache, corpora, streams, tokenizers
from tests.data import helpers


def prepare(place: str, gate: object, results: object) -> None:
    config = helpers.config(Path(place) / "cache", data__path=str(Path(place) / "texts" / "**" / "*.txt"))
    gate.wait()  # all at once
    corpus = corpora.open_corpus(config.data)
    stream = streams.open_stream(corpus, tokenizers.Bytes(), "train")
    results.put((corpus.key, len(corpus.train), int(stream.tokens.sum())))


def test_several_processes_prepare_at_once(tmp_path: Path) -> None:
    helpers.write_files(tmp_path / "texts", 60)
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=prepare, args=(str(tmp_path), gate, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = {results.get(timeout=100) for _ in workers}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(found) == 1
    folders = [p.name for p in (tmp_path / "cache" / "corpora").iterdir() if p.is_dir()]
    assert len(folders) == 1 and not folders[0].startswith(".")


def test_an_entry_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "entry"

    def fails(work: Path) -> None:
        (work / "half").write_text("x")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        cache.entry(folder, fails)
    assert not folder.exists() and not list(tmp_path.glob(".entry*/"))
    # What a killed process leaves behind is cleared away, and no other entry's work.
    for left in (".entry.x7", ".other.x7"):
        (tmp_path / left).mkdir()
    calls = []

    def builds(work: Path) -> None:
        calls.append(work)
        (work / "sub").mkdir()
        (work / "sub" / "file").write_text("content")

    for _ in range(2):
        cache.entry(folder, builds)
    assert len(calls) == 1 and (folder / "sub" / "file").read_text() == "content"
    assert not (tmp_path / ".entry.x7").exists() and (tmp_path / ".other.x7").exists()


@pytest.mark.parametrize("damage", ["cut", "removed", "marker"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    texts = helpers.write_files(tmp_path / "texts", 9)
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "texts/**/*.txt"))
    corpora.open_corpus(config.data)
    record = next((tmp_path / "cache").rglob("*train.array_record*"))
    if damage == "cut":
        os.truncate(record, record.stat().st_size // 2)
    elif damage == "removed":
        record.unlink()
    else:
        next((tmp_path / "cache").rglob(cache.MARKER)).write_text("{")
    again = corpora.open_corpus(config.data)
    assert sorted([*again.train, *again.validation]) == sorted(texts.values())


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLAX_CACHE", str(tmp_path / "variable"))
    assert cache.root(str(tmp_path / "field")) == tmp_path / "field"
    assert cache.root() == tmp_path / "variable"
    folder = cache.private_folder("", "corpora")
    assert folder == tmp_path / "variable" / "corpora"
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    monkeypatch.delenv("ABLAX_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache.root() == tmp_path / "xdg" / "ablax"


def test_tokens_are_encoded_once_for_each_tokenizer(tmp_path: Path) -> None:
    helpers.write_files(tmp_path / "texts", 9)
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "texts/**/*.txt"))
    corpus = corpora.open_corpus(config.data)
    char = tokenizers.Characters("".join([*corpus.train, *corpus.validation]))
    for tokenizer in (tokenizers.Bytes(), char, tokenizers.Bytes()):
        stream = streams.open_stream(corpus, tokenizer, "validation")
        texts = [tokenizer.decode(stream.tokens[a:b]) for a, b in zip(stream.starts, stream.starts[1:], strict=False)]
        end = "\0" if tokenizer.separator == 0 else ""
        assert texts == [text + end for text in corpus.validation]
        assert stream.byte_counts.sum() == sum(len(text.encode()) for text in corpus.validation)
    markers = list((tmp_path / "cache" / "tokens").rglob(cache.MARKER))
    assert len(markers) == 2 and all(json.loads(marker.read_text()) for marker in markers)
