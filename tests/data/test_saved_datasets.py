"""Folders that Hugging Face `datasets` saved with `save_to_disk`, made by the library itself."""

import json

import pytest

from configs.errors import UserError
from data import sources
from tests.data.common import open_texts, settings, words

datasets = pytest.importorskip("datasets")
TEXTS = {"train": [words(n, 60) for n in range(12)], "validation": [words(50 + n, 60) for n in range(3)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    splits = {name: datasets.Dataset.from_dict({"text": texts, "n": list(range(len(texts)))})
              for name, texts in TEXTS.items()}  # fmt: skip
    datasets.DatasetDict(splits).save_to_disk(folder / "both", num_shards={"train": 3, "validation": 1})
    splits["train"].save_to_disk(folder / "one")
    return folder


def test_a_dataset_dict_trains_and_validates_on_its_splits(folder, tmp_path):
    corpus = open_texts(folder / "both", tmp_path)
    assert list(corpus.train) == TEXTS["train"] and list(corpus.validation) == TEXTS["validation"]
    split = open_texts(folder / "both/train", tmp_path, data__validation_path=str(folder / "both/validation"))
    assert split.fingerprint["documents_sha256"] == corpus.fingerprint["documents_sha256"]


def test_files_that_the_state_does_not_list_are_not_read(folder, tmp_path):
    before = open_texts(folder / "one", tmp_path).fingerprint["documents_sha256"]
    cached = folder / "one/cache-0123456789abcdef.arrow"
    cached.write_bytes((folder / "both/validation/data-00000-of-00001.arrow").read_bytes())
    assert open_texts(folder / "one", tmp_path).fingerprint["documents_sha256"] == before


@pytest.mark.parametrize("name", ["../both/train/data-00000-of-00003.arrow", "gone.arrow", 7])
def test_a_state_that_lists_other_files_is_refused(folder, tmp_path, name):
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(UserError, match="which is not a file of its folder"):
        sources.open_data(settings(data__path=str(tmp_path)).data)


def test_a_dataset_dict_without_train_is_refused(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["test"]}))
    with pytest.raises(UserError, match="has no split 'train'; it has test"):
        sources.open_data(settings(data__path=str(tmp_path)).data)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["../x"]}))
    with pytest.raises(UserError, match="which is not a folder beside it"):
        sources.open_data(settings(data__path=str(tmp_path)).data)
