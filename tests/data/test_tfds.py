"""TFDS data sets prepared elsewhere: found by name and folder, read as they are, each mistake told."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs.errors import UserError
from data import corpora, sources, tfds_sets
from data.documents import Document
from tests.data.common import settings, words

TRAIN = [f"{i} " + words(i, 30) + " \u00e9" for i in range(30)]
VALIDATION = [f"v{i} " + words(100 + i, 30) for i in range(5)]


class TinyStories(tfds.core.GeneratorBasedBuilder):
    """Two splits of text with a number beside it."""

    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="plain"), tfds.core.BuilderConfig(name="loud"))
    skip_registration = True

    def _info(self):
        features = {"story": tfds.features.Text(), "n": tfds.features.Scalar(dtype=np.int64)}
        return tfds_sets._LocalInfo(builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(TRAIN),
            "dev": self._generate_examples(VALIDATION),
            "void": self._generate_examples(["", ""]),
        }

    def _generate_examples(self, texts):
        for index, text in enumerate(texts):
            yield index, {"story": text.upper() if self.builder_config.name == "loud" else text, "n": index}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tfds")
    for config in ("plain", "loud"):
        TinyStories(data_dir=path, config=config, file_format="array_record").download_and_prepare()
    # As a data set without configs is laid out, in two versions.
    for version in ("1.9.0", "1.10.0"):
        shutil.copytree(path / "tiny_stories/plain/1.2.0", path / "copied" / version)
        for record in (path / "copied" / version).glob("tiny_stories-*"):
            record.rename(record.with_name(record.name.replace("tiny_stories", "copied")))
        about = path / "copied" / version / "dataset_info.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"version": version, "name": "copied"}))
    return path


def open_named(folder: Path, cache: Path, name: str = "tiny_stories/plain", **overrides) -> corpora.Corpus:
    values = {"data__tfds__validation_split": "dev", "data__field": "story", "data__cache_dir": str(cache)} | overrides
    return sources.open_data(settings(data__tfds__name=name, data__tfds__data_dir=str(folder), **values).data)


def test_by_name_and_folder(folder, tmp_path):
    corpus = open_named(folder, tmp_path)
    assert (list(corpus.train), list(corpus.validation)) == (TRAIN, VALIDATION)
    about = corpus.fingerprint
    assert about["source"] == "tfds:tiny_stories/plain:1.2.0"
    assert about["documents"] == {"train": 30, "validation": 5}
    assert about["bytes"] == len("".join(TRAIN + VALIDATION).encode()) == sum(about["text_bytes"].values())
    assert about["sha256"] == hashlib.sha256("".join(TRAIN + VALIDATION).encode()).hexdigest()
    assert str(folder) not in json.dumps(about)


def test_configs_and_versions(folder, tmp_path):
    assert open_named(folder, tmp_path, "tiny_stories/loud:1.2.0").train[3] == TRAIN[3].upper()
    assert open_named(folder, tmp_path, "copied").fingerprint["source"] == "tfds:copied:1.10.0", "the newest"
    assert open_named(folder, tmp_path, "copied:1.9.0").fingerprint["source"] == "tfds:copied:1.9.0"


def test_parts_of_splits(folder, tmp_path):
    parts = {"data__tfds__train_split": "train[:90%]", "data__tfds__validation_split": "train[90%:]"}
    corpus = open_named(folder, tmp_path, **parts)
    assert (list(corpus.train), list(corpus.validation)) == (TRAIN[:27], TRAIN[27:])
    assert corpus.key != open_named(folder, tmp_path).key


OVERLAPPING = [
    ("train", "train[90%:]", 3),
    ("train", "train", 30),
    ("train+dev", "dev", 5),
    ("train[:20]", "train[10:]", 10),
    ("train[5:10]+train[20:22]", "train[9:21]", 2),
    ("train[1:2]", "all", 1),
]


@pytest.mark.parametrize(("train", "validation", "shared"), OVERLAPPING)
def test_splits_that_overlap_are_refused(folder, tmp_path, train, validation, shared):
    parts = {"data__tfds__train_split": train, "data__tfds__validation_split": validation}
    with pytest.raises(
        UserError, match=rf"validation_split = .*: {shared} of its records are in train_split = "
    ) as message:
        open_named(folder, tmp_path, **parts)
    assert repr(train) in str(message.value) and repr(validation) in str(message.value)


@pytest.mark.parametrize(
    ("train", "validation"),
    [("train[:90%]", "train[90%:]"), ("train[10:]", "train[:10]"), ("train[5:10]", "train[:5]+train[10:]+dev")],
)
def test_parts_that_touch_do_not_overlap(folder, tmp_path, train, validation):
    parts = {"data__tfds__train_split": train, "data__tfds__validation_split": validation}
    corpus = open_named(folder, tmp_path, **parts)
    assert not set(corpus.train) & set(corpus.validation) and corpus.fingerprint["duplicates"] == 0


def written(folder: Path, train: list[str], validation: list[str]) -> corpora.Corpus:
    texts = {"train": train, "validation": validation}
    documents = {name: [Document(str(i), text) for i, text in enumerate(of)] for name, of in texts.items()}
    tfds_sets.write(folder / "sets", {name: of.__iter__ for name, of in documents.items()})
    return open_named(folder / "sets", folder / "cache", "ablax_text", data__tfds__validation_split="validation",
                      data__field="text")  # fmt: skip


def test_duplicates_are_counted_and_those_between_splits_told(tmp_path, capsys):
    corpus = written(tmp_path, ["a a", "b b", "a a", "c c", "", ""], ["d d", "b b", "d d", "a a", "e e", ""])
    about = corpus.fingerprint
    assert (about["duplicates"], about["validation_in_train"]) == (4, 2)
    assert about["documents"] == {"train": 6, "validation": 6}, "nothing is left out"
    assert "2 of the 6 validation documents are also in the train split, word for word" in capsys.readouterr().err


def test_duplicates_within_splits_are_no_leak(tmp_path, capsys):
    about = written(tmp_path, ["a a", "a a"], ["b b", "b b"]).fingerprint
    assert about["duplicates"] == 2 and "validation_in_train" not in about and not capsys.readouterr().err


def test_validation_that_is_all_trained_is_refused(tmp_path):
    with pytest.raises(UserError, match="all its documents are also in train_split = 'train', word for word"):
        written(tmp_path, ["a a", "b b", "c c"], ["b b", "a a", "b b"])


def test_the_fingerprint_is_the_contents(folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(folder / "tiny_stories", moved / "tiny_stories")
    one, two = open_named(folder, tmp_path / "cache"), open_named(moved, tmp_path / "cache2")
    assert (one.key, one.fingerprint) == (two.key, two.fingerprint)
    (record,) = (moved / "tiny_stories/plain/1.2.0").glob("*train.array_record*")
    shutil.copy(next((moved / "tiny_stories/loud/1.2.0").glob("*train.array_record*")), record)
    changed = open_named(moved, tmp_path / "cache2")
    assert changed.key != one.key and changed.fingerprint["sha256"] != one.fingerprint["sha256"]


def test_the_environments_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
    monkeypatch.setattr(tfds.core.constants, "get_default_data_dir", lambda: str(folder))
    values = {"data__tfds__validation_split": "dev", "data__field": "story", "data__cache_dir": str(tmp_path)}
    assert len(sources.open_data(settings(data__tfds__name="copied", **values).data).train) == 30


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "tiny_storys",
            {},
            r"'tiny_storys': not found in .*, which has copied:1\.10\.0, copied:1\.9\.0, tiny_stories/",
        ),
        ("copied:2.0.0", {}, "'copied:2.0.0': not found in"),
        ("copied", {"data__tfds__validation_split": "validation"}, "no split 'validation'; it has train, dev, void"),
        ("copied", {"data__tfds__train_split": "train[:x]"}, r"no split 'train\[:x\]'"),
        ("copied", {"data__tfds__validation_split": "void"}, "validation_split = 'void': has no text"),
        ("copied", {"data__field": "text"}, r"data\.field = 'text': copied:1\.10\.0 has the features .*story"),
        ("copied", {"data__field": "n"}, r"data\.field = 'n': of copied:1\.10\.0 is Scalar, not text"),
    ],
)
def test_mistakes(folder, tmp_path, name, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        open_named(folder, tmp_path, name, **overrides)
    assert "\n" not in str(error.value)


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match="which has no prepared data set"):
        open_named(tmp_path, tmp_path / "cache")


def test_files_without_random_access(folder, tmp_path):
    shutil.copytree(folder / "copied", tmp_path / "copied")
    about = tmp_path / "copied/1.10.0/dataset_info.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(UserError, match="its files are tfrecord; prepare it with file_format='array_record'"):
        open_named(tmp_path, tmp_path / "cache", "copied")


def test_a_missing_record_file(folder, tmp_path):
    shutil.copytree(folder / "copied/1.10.0", tmp_path / "copied/1.10.0")
    next((tmp_path / "copied/1.10.0").glob("copied-dev*")).unlink()
    with pytest.raises(UserError, match=r"copied:1\.10\.0: copied-dev\S* cannot be read \(No such file"):
        open_named(tmp_path, tmp_path / "cache", "copied")


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_a_damaged_data_set(folder, tmp_path, name):
    shutil.copytree(folder / "copied/1.10.0", tmp_path / "copied/1.10.0")
    (tmp_path / "copied/1.10.0" / name).write_text("{")
    with pytest.raises(UserError, match=r"copied:1\.10\.0.*cannot be opened"):
        open_named(tmp_path, tmp_path / "cache", "copied")


def test_text_that_is_no_utf8():
    texts = tfds_sets.Texts([{"text": b"fine"}, {"text": b"a\xff"}], "text", "set:1.0.0, split train")
    assert texts[0] == "fine"
    with pytest.raises(UserError, match=r"set:1\.0\.0, split train, record 1: is not valid UTF-8 at byte offset 1"):
        texts[1]
