"""Compressed files, Parquet and Arrow: the documents of the same text, read in pieces, and damage told in one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.errors import UserError
from data import sources
from data.formats import columns, compressed
from tests.data.common import settings, words, write
from tests.data.test_shards import DOCUMENTS, HELD_OUT, batches, ids, same, shard
from training.loop.trainer import train

EVERY = ["a.jsonl.gz", "a.jsonl.zst", "two.jsonl.gz", "two.jsonl.zst", "a.parquet", "a.arrow", "s.arrow", "folder",
         "tokens.parquet", "tokens.arrow"]  # fmt: skip


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def arrow(table: pa.Table, path: Path, new: Any = pa.ipc.new_file) -> None:
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    text = lines(DOCUMENTS)
    write(folder, {f"texts/{i}.txt": one for i, one in enumerate(DOCUMENTS)})
    write(folder, {"a.jsonl": text, "held.jsonl": lines(HELD_OUT), "held.bin": shard(ids(HELD_OUT))})
    write(folder, {"a.bin": shard(ids(DOCUMENTS)), "a.jsonl.gz": gzip.compress(text), "a.jsonl.zst": zstd(text)})
    halves = [lines(DOCUMENTS[:3]), lines(DOCUMENTS[3:])]  # two members, as `cat a.gz b.gz` makes
    write(folder, {"two.jsonl.gz": b"".join(map(gzip.compress, halves)), "two.jsonl.zst": b"".join(map(zstd, halves))})
    table = pa.table({"id": range(6), "text": DOCUMENTS})
    tokens = pa.table({"text": [ids([one]).tolist() for one in DOCUMENTS]})
    pq.write_table(table, folder / "a.parquet", row_group_size=2)
    pq.write_table(tokens, folder / "tokens.parquet", row_group_size=2)
    arrow(table, folder / "a.arrow")
    arrow(table, folder / "s.arrow", pa.ipc.new_stream)
    arrow(tokens, folder / "tokens.arrow")
    (folder / "folder").mkdir()
    for number in range(2):
        pq.write_table(table.slice(3 * number, 3), folder / f"folder/{number}.parquet")
    return folder


def where(files: Path, path: str) -> dict[str, str]:
    held = "held.bin" if path.endswith("bin") or path.startswith("tokens") else "held.jsonl"
    return {"data__path": str(files / path), "data__validation_path": str(files / held)}


def test_every_format_of_the_same_documents_gives_the_same_rows(files: Path, tmp_path: Path) -> None:
    text = batches(tmp_path, **where(files, "texts/*.txt"))
    for path in EVERY:
        result = batches(tmp_path, **where(files, path))
        assert len(result) == len(text) and all(map(same, result, text)), path


def test_the_same_tokens_in_every_format_train_to_the_same_losses(files: Path, tmp_path: Path) -> None:
    model = {"model__width": 16, "model__num_layers": 1, "model__num_heads": 2, "model__vocab_size": 256}
    more = {"budget__amount": 20, "log__every_steps": 1, "eval__tokens": 128, "log__tensorboard": False}

    def losses(path: str) -> list[float]:
        given = settings(data__cache_dir=str(tmp_path / "cache"), **where(files, path), **model, **more)
        workdir = tmp_path / path.replace("/", "-").replace("*", "all")
        train(given, workdir, quiet=True)
        results = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        return [one[name] for one in results for name in ("train_loss", "val_loss") if name in one]

    text = losses("texts/*.txt")
    assert len(text) >= 20
    for path in ("a.jsonl", "a.jsonl.gz", "a.parquet", "a.bin"):
        assert losses(path) == text, path


def opened(path: Path, **more: Any) -> Any:
    return sources.open_data(settings(data__path=str(path), data__cache_dir=str(path.parent / "cache"), **more).data)


def test_compressed_text_and_missing_values(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt.gz": gzip.compress(words(0, 40).encode())})
    corpus = opened(tmp_path / "a.txt.gz")
    assert "".join([*corpus.train, *corpus.validation]) == words(0, 40)
    pq.write_table(pa.table({"text": ["one", None, "", "two", "three"]}), tmp_path / "b.parquet")
    corpus = opened(tmp_path / "b.parquet")
    assert sorted([*corpus.train, *corpus.validation]) == ["one", "three", "two"]


def test_columns_are_read_a_batch_at_a_time(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(i) for i in range(5000)]}), tmp_path / "a.parquet", row_group_size=700)
    with columns.PARQUET.open(tmp_path / "a.parquet") as (_, read):
        assert max(batch.num_rows for batch in read("text")) <= columns.ROWS
    assert list(columns.texts(columns.PARQUET, tmp_path / "a.parquet", "text")) == [str(i) for i in range(5000)]


def test_what_is_wrong(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gz, zst, parquet = ((files / name).read_bytes() for name in ("a.jsonl.gz", "a.jsonl.zst", "a.parquet"))
    cases = [
        ("a.jsonl.gz", gz[:-40], {}, r"a\.jsonl\.gz: is damaged gzip, or cannot be read"),
        ("b.jsonl.gz", gz[:60] + b"\0" * 30 + gz[90:], {}, r"b\.jsonl\.gz: is damaged gzip"),
        ("a.jsonl.zst", zst[:-40], {}, r"a\.jsonl\.zst: is damaged Zstandard"),
        ("a.parquet", parquet[:-20], {}, r"a\.parquet: is damaged Parquet"),
        ("b.parquet", parquet, {"data__field": "body"}, r"has no column 'body' \(data\.field\); it has id, text"),
        (
            "c.parquet",
            parquet,
            {"data__field": "id"},
            r"'id' must have text or lists of whole numbers, has int64",
        ),
        ("a.arrow", (files / "a.arrow").read_bytes()[:-60], {}, r"a\.arrow: is damaged Arrow"),
        ("x.dat", b"PK\x03\x04" + b"\xff" * 99, {}, r"x\.dat: is a zip archive .* not supported \(see docs/data\.md"),
        ("y.dat", b"\x89HDF\r\n\x1a\n" + b"\0" * 99, {}, r"y\.dat: is HDF5, which is not supported"),
    ]
    for name, content, more, message in cases:
        write(tmp_path, {name: content})
        with pytest.raises(UserError, match=message) as text_message:
            opened(tmp_path / name, **more)
        assert "\n" not in str(text_message.value)
    monkeypatch.setattr(compressed, "MOST", 100)
    write(tmp_path, {"bomb.jsonl.gz": gzip.compress(b"a" * 200), "bomb.txt.gz": gzip.compress(b"a" * 200)})
    for name in ("bomb.jsonl.gz", "bomb.txt.gz"):
        with pytest.raises(UserError, match=r"more than 100 bytes, decompressed"):
            opened(tmp_path / name)


def test_ids_of_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 2], [3], [], [4, 5, 6, 7, 8, 9]]}), tmp_path / "a.parquet")
    corpus = opened(tmp_path / "a.parquet", data__field="ids", data__vocab_size=10, data__train_share=0.7)
    stream = corpus.stream(None, "train")
    assert np.array_equal(stream.tokens[:], np.arange(1, 7))
    pq.write_table(pa.table({"ids": [[1, -2, 3, 4]]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: column 'ids' has an id outside 0"):
        opened(tmp_path / "b.parquet", data__field="ids", data__vocab_size=10)
