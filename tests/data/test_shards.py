"""Token files: the same rows as text of the same tokens, memory-mapped, and each damage told in one line."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import ConfigError, UserError
from data import formats, parts, pipeline, shards, sources, streams, tokenizers
from data.shards import Joined
from data.validation import Validation
from tests.data.common import same, settings, words, write

DOCUMENTS = [words(seed, 40) for seed in range(6)]
HELD_OUT = [words(seed, 30) for seed in range(100, 103)]


def ids(texts: list[str]) -> np.ndarray:
    return np.concatenate([[*text.encode(), 0] for text in texts]).astype(np.uint16)


def shard(tokens: Any, magic: int = 20240520, version: int = 1, count: int | None = None, dtype: str = "<u2") -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + np.asarray(tokens).astype(dtype).tobytes()


def saved(folder: Path, tokens: np.ndarray) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    np.save(folder, tokens)
    return folder


def config(folder: Path, **overrides: Any) -> Any:
    return settings(data__cache_dir=str(folder / "cache"), **overrides)


def opened(folder: Path, **overrides: Any) -> tuple[Any, Any, Any]:
    """Returns the config, the corpus and the tokenizer."""
    given = config(folder, **overrides)
    corpus = sources.open_data(given.data, given.model.vocab_size)
    return given, corpus, tokenizers.load(given.data, corpus, given.model.vocab_size)


def batches(folder: Path, number: int = 6, **overrides: Any) -> list[dict[str, np.ndarray]]:
    """Returns the first training batches and all validation batches."""
    given, corpus, tokenizer = opened(folder, **overrides)
    stream = pipeline.TrainStream(given, tokenizer, corpus)
    results = [next(stream) for _ in range(number)]
    stream.close()
    return [*results, *pipeline.validation(given, tokenizer, corpus, length=16, batch_size=4)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokens as text, as JSON lines and as token files, in one file and in several."""
    folder = tmp_path_factory.mktemp("files")
    tokens, held = ids(DOCUMENTS), ids(HELD_OUT)
    write(folder, {f"texts/{i}.txt": text for i, text in enumerate(DOCUMENTS)})
    write(folder, {f"held/{i}.txt": text for i, text in enumerate(HELD_OUT)})
    write(folder, {"a.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)})
    write(folder, {"one.bin": shard(tokens), "held.bin": shard(held)})
    write(folder, {"wide.bin": shard(tokens, 20240801, 7, dtype="<u4")})
    write(folder, {f"many_{i}.bin": shard(part) for i, part in enumerate(np.array_split(tokens, 5))})
    write(folder, {"plain.u16": tokens.astype("<u2").tobytes()})
    saved(folder / "array.npy", tokens.astype(np.int64))
    return folder


SAME = ["a.jsonl", "one.bin", "wide.bin", "many_*.bin", "plain.u16", "array.npy"]


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_every_format_of_the_same_tokens_gives_the_same_rows(files: Path, tmp_path: Path, packing: str) -> None:
    def of(path: str, held: str) -> list[dict[str, np.ndarray]]:
        where = {"data__path": str(files / path), "data__validation_path": str(files / held)}
        return batches(tmp_path, data__packing=packing, **where)

    text = of("texts/*.txt", "held/*.txt")
    for path in SAME:
        held = "held/*.txt" if path.endswith("jsonl") else "held.bin"
        result = of(path, held)
        assert len(result) == len(text) and all(map(same, result, text)), path
    changed = ids(DOCUMENTS)
    changed[changed == ord("a")] += 1
    (tmp_path / "changed.bin").write_bytes(shard(changed))
    assert not all(map(same, of(str(tmp_path / "changed.bin"), "held.bin"), text))


def test_without_a_validation_path_the_last_tokens_validate(files: Path, tmp_path: Path) -> None:
    _, corpus, tokenizer = opened(tmp_path, data__path=str(files / "many_*.bin"), data__train_share=0.75)
    train, held = (streams.open_stream(corpus, tokenizer, name) for name in ("train", "validation"))
    tokens = ids(DOCUMENTS)
    assert np.array_equal(np.concatenate([train.tokens[:], held.tokens[:]]), tokens)
    assert len(train) == int(0.75 * len(tokens)) and corpus.fingerprint["split"]["kind"] == "first"


def test_places_are_those_of_the_files_joined(files: Path) -> None:
    paths = sorted(files.glob("many_*.bin"))
    results = []
    for path in paths:
        start = formats.head(path)
        layout = formats.TOKENS["llm.c"].layout(path, path.stat().st_size, start)
        results.append(shards.Shard(path.name, str(path), path.stat().st_size, layout, "llm.c"))
    tokens = ids(DOCUMENTS)
    joined, whole = Joined(results, 7, len(tokens) - 5, 256), tokens[7:-5]
    draw = np.random.default_rng(0)
    for _ in range(50):
        a, b = sorted(draw.integers(0, len(whole), 2))
        assert np.array_equal(joined[a:b], whole[a:b]) and np.array_equal(joined[a:b:3], whole[a:b:3])
    places = draw.integers(-len(whole), len(whole), (5, 7))
    assert np.array_equal(joined[places], whole[places])
    assert joined[-1] == whole[-1] and joined[0] == whole[0] and np.array_equal(joined[-1:], whole[-1:])
    assert np.array_equal(np.concatenate(joined.spread(3, 11)[:1]), whole[:11])
    assert np.array_equal(joined.spread(3, 11)[-1], whole[-11:])


def test_sent_to_another_process_it_is_opened_anew(files: Path, tmp_path: Path) -> None:
    _, corpus, tokenizer = opened(tmp_path, data__path=str(files / "one.bin"))
    stream = streams.open_stream(corpus, tokenizer, "train")
    sent = pickle.dumps(stream)
    again = pickle.loads(sent)
    assert np.array_equal(again.tokens[:], stream.tokens[:]) and np.array_equal(again.starts, stream.starts)


def test_bytes_are_measured_from_a_sample_or_not_known(files: Path, tmp_path: Path) -> None:
    where = {"data__path": str(files / "one.bin"), "data__validation_path": str(files / "held.bin")}
    _, corpus, tokenizer = opened(tmp_path, **where)
    stream = streams.open_stream(corpus, tokenizer, "validation")
    held = ids(HELD_OUT)
    assert stream.bytes_per_token == pytest.approx((len(held) - 3) / len(held)) and stream.separated
    rows = Validation(stream, "contiguous", length=16, batch_size=4)
    assert rows.bytes == round(rows.tokens * stream.bytes_per_token)
    _, corpus, tokenizer = opened(tmp_path, **where, model__vocab_size=300)
    assert tokenizer is None
    stream = streams.open_stream(corpus, tokenizer, "validation")
    assert stream.bytes_per_token is None and Validation(stream, "contiguous", length=16, batch_size=4).bytes is None
    assert stream.starts.tolist() == [0, len(held)] and not stream.separated
    _, corpus, _ = opened(tmp_path, **where, model__vocab_size=300, data__separator=0)
    assert len(streams.open_stream(corpus, None, "validation").starts) == 1 + len(HELD_OUT)


@pytest.mark.parametrize("separator", [None, 0])
def test_the_parts_of_the_validation_split_are_all_of_it(files: Path, tmp_path: Path, separator: int | None) -> None:
    where = {"data__path": str(files / "one.bin"), "data__validation_path": str(files / "held.bin")}
    _, corpus, _ = opened(tmp_path, **where, model__vocab_size=300, data__separator=separator)
    results = [parts.open_split(corpus, None, name) for name in parts.PARTS]
    count = sum(int(np.sum(np.asarray(one.tokens) != 0)) for one in results)
    assert count == int(np.sum(ids(HELD_OUT) != 0)) and min(map(len, results)) > len(ids(HELD_OUT)) // 5


def test_fingerprints(files: Path, tmp_path: Path) -> None:
    def key(path: str | Path, **more: Any) -> str:
        return opened(tmp_path, data__path=str(path), data__validation_path=str(files / "held.bin"), **more)[1].key

    one = key(files / "one.bin")
    (tmp_path / "one.bin").write_bytes((files / "one.bin").read_bytes())
    assert key(tmp_path / "one.bin") == one, "wherever it lies"
    content = bytearray((files / "one.bin").read_bytes())
    content[-1] ^= 1
    (tmp_path / "one.bin").write_bytes(content)
    with pytest.raises(UserError, match="ids must be below"):
        streams.open_stream(opened(tmp_path, data__path=str(tmp_path / "one.bin"))[1], None, "validation")
    assert (
        len({one, key(tmp_path / "one.bin"), key(files / "many_*.bin"), key(files / "one.bin", data__separator=1)}) == 4
    )


TOKENS = np.arange(100)
WRONG: list[tuple[str, bytes, str]] = [
    ("x.bin", shard(TOKENS)[:700], r"x\.bin: is truncated: a token shard's header has 1,024 bytes, the file 700"),
    ("x.bin", shard(TOKENS, count=101), r"x\.bin: its header has 101 tokens, the file 100"),
    ("x.bin", shard(TOKENS, count=-1), r"x\.bin: its header has -1 tokens, the file 100"),
    ("x.bin", shard(TOKENS) + b"\1", r"x\.bin: its header has 100 tokens"),
    ("x.bin", shard(TOKENS, version=2), r"x\.bin: is a token shard of magic 20240520 version 2; supported are"),
    ("x.bin", shard(TOKENS, magic=20240522), r"x\.bin: is an evaluation file of llm\.c"),
    ("x.bin", TOKENS.astype("<u2").tobytes(), r"x\.bin: is not a token shard: it begins with 65536;.*\.u16"),
    ("x.u16", b"\1\0\2", r"x\.u16: has an odd number of bytes, 3"),
    ("x.npy", b"\x93NUMPY\1\0", r"x\.npy: is not a NumPy array of tokens"),
    ("x.bin", shard([]), "the train split of the token files has 0 tokens"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path, {name: content})
    with pytest.raises(UserError, match=message) as text_message:
        opened(tmp_path, data__path=str(tmp_path / name))
    assert "\n" not in str(text_message.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4), np.uint16), "must be a 1-d array of whole numbers, is uint16 of shape 3x4"),
        (np.zeros(9, np.float32), "must be a 1-d array of whole numbers, is float32"),
        (np.array([{}, 1], object), "is not a NumPy array of tokens"),
    ],
)
def test_arrays_of_something_else(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        opened(tmp_path, data__path=str(tmp_path / "x.npy"))


def test_ids_beyond_the_vocabulary(tmp_path: Path) -> None:
    tokens = np.full(3000, 70)
    tokens[2000] = 71
    write(tmp_path, {"a.bin": shard(tokens[:1500]), "b.bin": shard(tokens[1500:])})
    where = {"data__path": str(tmp_path / "*.bin"), "data__vocab_size": 71}
    _, corpus, tokenizer = opened(tmp_path, **where)
    with pytest.raises(UserError, match=r"b\.bin: token 500 is 71, and ids must be below the vocabulary's 71"):
        streams.open_stream(corpus, tokenizer, "train")
    stream = shards.ShardStream(corpus, tokenizer, "train")  # as if the sample had not met it
    assert stream.tokens[1990:2000].tolist() == [70] * 10
    with pytest.raises(UserError, match=r"b\.bin: token 500 is 71"):
        stream.tokens[np.arange(1999, 2003)]
    np.save(tmp_path / "n.npy", np.array([1, 2, -3, 4, 5] * 9))
    with pytest.raises(UserError, match=r"n\.npy: token 2 is -3"):
        streams.open_stream(opened(tmp_path, data__path=str(tmp_path / "n.npy"))[1], None, "train")


def test_files_of_two_kinds_and_splits_of_the_same(files: Path, tmp_path: Path) -> None:
    write(tmp_path, {"in/a.bin": shard(TOKENS), "in/b.txt": "text"})
    with pytest.raises(UserError, match=r"data\.path: matches token files and .*b\.txt, which is not one"):
        opened(tmp_path, data__path=str(tmp_path / "in/*"))
    with pytest.raises(UserError, match=r"data\.validation_path: matches token files and .*0\.txt, which is not one"):
        opened(tmp_path, data__path=str(files / "one.bin"), data__validation_path=str(files / "held/*.txt"))
    with pytest.raises(UserError, match=r"held\.bin has the same content as held\.bin of data\.path, which trains"):
        opened(tmp_path, data__path=str(files / "*d.bin"), data__validation_path=str(files / "held.bin"))
    with pytest.raises(UserError, match=r"data\.validation_path = .*: no file matches"):
        opened(tmp_path, data__path=str(files / "one.bin"), data__validation_path=str(files / "no*.bin"))


def test_fields_of_token_files(files: Path, tmp_path: Path) -> None:
    text, one = {"data__path": str(files / "texts/*.txt")}, {"data__path": str(files / "one.bin")}
    with pytest.raises(UserError, match=r"data\.vocab_size = 9: applies to token files only"):
        opened(tmp_path, **text, data__vocab_size=9)
    with pytest.raises(UserError, match="'none': only for token files"):
        opened(tmp_path, **text, data__tokenizer="none", model__vocab_size=9)
    with pytest.raises(UserError, match="'char': needs a text, and token files have none"):
        opened(tmp_path, **one, data__tokenizer="char")
    for wrong, message in (
        ({"data__separator": 3}, "data.separator = 3: applies to token files only"),
        ({"data__tokenizer": "none"}, "data.tokenizer = 'none': text needs one"),
        ({**one, "data__tokenizer": "none"}, "model.vocab_size: must be set where data.tokenizer = 'none'"),
        ({**one, "data__vocab_size": 300, "model__vocab_size": 299}, "must be at most model.vocab_size = 299"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            config(tmp_path, **wrong)
    assert config(tmp_path, **one, data__vocab_size=300).model.vocab_size == 300


LARGE = """
import resource, sys, time
from configs import base, cli, validate
from data import pipeline, sources, tokenizers
config = base.get_config()
cli.apply(config, {"data.path": sys.argv[1]})
cli.apply(config, {"model.vocab_size": 50304, "data.length": 1024, "data.cache_dir": sys.argv[2]})
config = validate.resolve(config)
start = time.process_time()  # the machine may be busy
corpus = sources.open_data(config.data, config.model.vocab_size)
stream = pipeline.TrainStream(config, tokenizers.load(config.data, corpus, config.model.vocab_size), corpus)
next(stream)
next(iter(pipeline.validation(config, None, corpus, length=1024, batch_size=16, max_tokens=65536)))
print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
stream.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sparse files and KiB of resident memory")
def test_a_large_shard_starts_at_once_and_stays_on_disk(tmp_path: Path) -> None:
    count = 2**30
    with (tmp_path / "large.bin").open("wb") as file:
        file.write(shard([], count=count))
        file.truncate(1024 + 2 * count)

    def started(attempt: int) -> list[float]:
        call = [sys.executable, "-c", LARGE, tmp_path / "large.bin", tmp_path / f"cache{attempt}"]
        return [float(word) for word in subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()]

    seconds, mebibytes = min(started(attempt) for attempt in range(2))  # a busy machine costs processor time too
    assert seconds < 3 and mebibytes < 300
