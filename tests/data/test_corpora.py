import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

import data
from configs.errors import UserError
from data import corpora, documents, tokenizers
from tests.data import helpers


@pytest.fixture(scope="module")
def stdlib() -> corpora.Corpus:
    return corpora.open_corpus(helpers.config().data)


def test_the_built_in_corpus_is_the_standard_library_without_its_tests(stdlib: corpora.Corpus) -> None:
    names = [file.name for file in documents.stdlib_files()]
    assert {"json/decoder.py", "argparse.py", "asyncio/tasks.py"} <= set(names)
    assert not [n for n in names if {"test", "tests", "idle_test", "site-packages"} & set(n.split("/"))]
    train, validation = list(stdlib.train), list(stdlib.validation)
    # Exact duplicates would let a model recite what it is validated on.
    assert len(set(train + validation)) == len(train) + len(validation)
    assert sum(map(len, train)) > 5e6
    assert 1e5 < sum(len(t.encode()) for t in validation) == stdlib.fingerprint["text_bytes"]["validation"]
    assert Path(os.__file__).read_text(encoding="utf-8") in train + validation
    assert stdlib.fingerprint["documents"] == {"train": len(train), "validation": len(validation)}


def test_no_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.data import helpers; from data import corpora, pipeline, tokenizers;"
        f"helpers.write_files(__import__('pathlib').Path({str(tmp_path)!r}), 9);"
        f"c = helpers.config({str(tmp_path / 'cache')!r}, data__path={str(tmp_path / '**/*.txt')!r}, data__length=16);"
        "k = corpora.open_corpus(c.data); t = tokenizers.load(c.data, k);"
        "s = pipeline.TrainStream(c, t, k); next(s); s.close();"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    texts = helpers.write_files(tmp_path / "texts", 20)
    texts["dos.txt"] = "\ufeffone\r\ntwo\r\n"
    (tmp_path / "texts" / "dos.txt").write_bytes(texts["dos.txt"].encode())
    config = helpers.config(
        tmp_path / "cache", data__path=str(tmp_path / "texts" / "**" / "*.txt"), data__train_share=0.7
    )
    corpus = corpora.open_corpus(config.data)
    assert sorted([*corpus.train, *corpus.validation]) == sorted(texts.values())
    assert 8 <= len(corpus.train) <= 20
    assert corpus.train[-1] == corpus.train[len(corpus.train) - 1] == list(corpus.train)[-1]
    assert corpus.train[2:5] == list(corpus.train)[2:5]
    assert corpus.fingerprint["files"] == 21
    assert corpus.fingerprint["bytes"] == sum(len(t.encode()) for t in texts.values())


def test_the_same_files_elsewhere_are_the_same_data(tmp_path: Path) -> None:
    found = []
    for place in ("here", "there/deeper"):
        helpers.write_files(tmp_path / place, 12)
        config = helpers.config(tmp_path / place / "cache", data__path=str(tmp_path / place / "**" / "*.txt"))
        corpus = corpora.open_corpus(config.data)
        found.append((corpus.key, data.fingerprint(config, corpus, tokenizers.Bytes()), list(corpus.train)))
    assert found[0] == found[1]
    json.dumps(found[0][1])


def test_a_changed_file_is_never_stale(tmp_path: Path) -> None:
    texts = helpers.write_files(tmp_path / "texts", 12)
    config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "texts" / "**" / "*.txt"))
    before = corpora.open_corpus(config.data)
    changed = tmp_path / "texts" / next(iter(texts))
    times = changed.stat()
    content = changed.read_bytes()
    changed.write_bytes(content.swapcase())
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same times
    after = corpora.open_corpus(config.data)
    assert after.key != before.key
    assert content.swapcase().decode() in [*after.train, *after.validation]
    assert content.decode() not in [*after.train, *after.validation]
    prints = [data.fingerprint(config, c, tokenizers.Bytes())["fingerprint"] for c in (before, after)]
    assert prints[0] != prints[1]


def test_new_files_move_no_old_one_between_the_splits(tmp_path: Path) -> None:
    def split(count: int) -> tuple[set[str], set[str]]:
        helpers.write_files(tmp_path / "texts", count)
        config = helpers.config(tmp_path / "cache", data__path=str(tmp_path / "texts/**/*.txt"), data__train_share=0.6)
        corpus = corpora.open_corpus(config.data)
        return set(corpus.train), set(corpus.validation)

    few, many = split(15), split(40)
    assert few[0] <= many[0] and few[1] <= many[1]
    assert abs(len(many[0]) / 40 - 0.6) < 0.25


def test_lines_of_json(tmp_path: Path) -> None:
    texts = [helpers.text(i) for i in range(30)]
    for part in range(2):
        lines = [json.dumps({"id": i, "body": texts[i]}) for i in range(part, 30, 2)]
        (tmp_path / f"part{part}.jsonl").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    config = helpers.config(
        tmp_path / "c", data__path=str(tmp_path / "*.jsonl"), data__field="body", data__train_share=0.5
    )
    corpus = corpora.open_corpus(config.data)
    assert sorted([*corpus.train, *corpus.validation]) == sorted(texts)
    assert len(corpus.train) > 3 and len(corpus.validation) > 3


@pytest.mark.parametrize("split", ["first", "hash"])
@pytest.mark.parametrize("share", [0.9, 0.37])
def test_one_text_is_cut_where_nanogpt_cuts_it(tmp_path: Path, split: str, share: float) -> None:
    whole = helpers.text(1, 500)
    (tmp_path / "input.txt").write_text(whole, encoding="utf-8")
    config = helpers.config(
        tmp_path / "c", data__path=str(tmp_path / "input.txt"), data__split=split, data__train_share=share
    )
    corpus = corpora.open_corpus(config.data)
    n = int(share * len(whole))
    assert list(corpus.train) == [whole[:n]] and list(corpus.validation) == [whole[n:]]
    assert corpus.fingerprint["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert corpus.fingerprint["listing"][0]["name"] == "input.txt"


def test_the_first_part_of_several_files(tmp_path: Path) -> None:
    texts = helpers.write_files(tmp_path, 7)
    whole = "".join(texts[name] for name in sorted(texts))
    config = helpers.config(tmp_path / "c", data__path=str(tmp_path / "**/*.txt"), data__split="first")
    corpus = corpora.open_corpus(config.data)
    assert "".join(corpus.train) == whole[: int(0.9 * len(whole))]
    assert "".join([*corpus.train, *corpus.validation]) == whole


def test_two_files_train_and_validate(tmp_path: Path) -> None:
    for pair in range(12):
        folder = tmp_path / str(pair)
        folder.mkdir()
        for half in "ab":
            (folder / f"{half}{pair}.txt").write_text(helpers.text(ord(half)), encoding="utf-8")
        corpus = corpora.open_corpus(helpers.config(tmp_path / "c", data__path=str(folder / "*.txt")).data)
        assert len(corpus.train) == len(corpus.validation) == 1


def test_exact_duplicates_are_dropped(tmp_path: Path) -> None:
    texts = helpers.write_files(tmp_path / "texts", 10)
    for name, content in texts.items():
        (tmp_path / "texts" / f"copy-{Path(name).name}").write_bytes(content.encode())
    (tmp_path / "texts" / "empty.txt").touch()
    config = helpers.config(tmp_path / "c", data__path=str(tmp_path / "texts/**/*.txt"), data__train_share=0.5)
    corpus = corpora.open_corpus(config.data)
    assert sorted([*corpus.train, *corpus.validation]) == sorted(texts.values())
    assert corpus.fingerprint["duplicates"] == 10
    assert corpus.fingerprint["skipped"] == 1


def test_the_fingerprint_covers_what_a_run_reads(tmp_path: Path) -> None:
    helpers.write_files(tmp_path / "texts", 12)

    def of(**changes: object) -> str:
        config = helpers.config(tmp_path / "c", data__path=str(tmp_path / "texts/**/*.txt"), **changes)
        corpus = corpora.open_corpus(config.data)
        return data.fingerprint(config, corpus, tokenizers.load(config.data, corpus))["fingerprint"]

    plain = of()
    assert plain == of(data__length=64, data__batch_size=2, seed=5, model__num_heads=4)
    others = [
        of(data__tokenizer="char"),
        of(data__weights__mqar=0.5),
        of(data__weights__mqar=0.5, data__mqar__pairs=2),
        of(data__train_share=0.4),
        of(data__packing="segments"),
        of(data__curriculum=({"steps": 3, "length": 32, "weights": {"text": 0.0, "mqar": 1.0}},)),
    ]
    assert len({plain, *others}) == 1 + len(others)


class OwnTexts(tfds.core.GeneratorBasedBuilder):
    """A user's own data set, as TFDS's guide writes one."""

    VERSION = tfds.core.Version("1.0.0")
    count = 20

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(
            {"title": tfds.features.Text(), "body": tfds.features.Text(), "n": np.int64}
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: object) -> dict:
        return {"train": self._generate_examples(0), "test": self._generate_examples(100)}

    def _generate_examples(self, start: int):
        for index in range(start, start + self.count):
            yield str(index), {"title": f"t{index}", "body": helpers.text(index), "n": index}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    OwnTexts(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_a_tfds_data_set_by_name(prepared: Path, tmp_path: Path) -> None:
    settings = {"data__tfds__name": "own_texts", "data__tfds__data_dir": str(prepared), "data__field": "body"}
    config = helpers.config(tmp_path, **settings, data__tfds__validation_split="test")
    corpus = corpora.open_corpus(config.data)
    assert sorted(corpus.train) == sorted(helpers.text(i) for i in range(20))
    assert sorted(corpus.validation) == sorted(helpers.text(i) for i in range(100, 120))
    assert corpus.fingerprint["source"] == "tfds:own_texts:1.0.0"
    parts = {"data__tfds__train_split": "train[:75%]", "data__tfds__validation_split": "train[75%:]"}
    cut = corpora.open_corpus(helpers.config(tmp_path, **settings, **parts).data)
    assert [len(cut.train), len(cut.validation)] == [15, 5]
    assert sorted([*cut.train, *cut.validation]) == sorted(corpus.train)
    assert cut.key != corpus.key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__tfds__name": "own_text"}, ["own_text'", "not found", "own_texts:1.0.0"]),
        ({"data__tfds__name": "own_texts:9.0.0"}, ["own_texts:9.0.0", "not found", "own_texts:1.0.0"]),
        ({"data__tfds__validation_split": "validation"}, ["'validation'", "train, test"]),
        ({"data__field": "text"}, ["'text'", "title", "body"]),
        ({"data__field": "n"}, ["'n'", "not text"]),
    ],
)
def test_what_is_wrong_with_a_tfds_data_set(prepared: Path, tmp_path: Path, changes: dict, words: list[str]) -> None:
    settings = {
        "data__tfds__name": "own_texts",
        "data__tfds__data_dir": str(prepared),
        "data__tfds__validation_split": "test",
        "data__field": "body",
        **changes,
    }
    with pytest.raises(UserError) as error:
        corpora.open_corpus(helpers.config(tmp_path, **settings).data)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)
