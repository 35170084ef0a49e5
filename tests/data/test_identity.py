"""The fingerprint: equal for equal data on any machine, another for anything else that was read."""

import json

import pytest

from data import fingerprint, sources, tokenizers
from tests.data.common import settings, words, write
from tests.data.test_tokenizers import trained

MQAR = {"data__weights__text": 0.0, "data__weights__mqar": 1.0}


def identify(folder, cache, text="", **overrides):
    write(folder, {f"{i}.txt": words(i, 40) + text for i in range(6)} | {"tokenizer.json": trained()})
    config = settings(data__path=str(folder / "*.txt"), data__cache_dir=str(cache), **overrides)
    corpus = sources.open_data(config.data)
    return fingerprint(config, corpus, tokenizers.load(config.data, corpus))


def test_equal_data_in_other_folders_is_equal(tmp_path):
    one = identify(tmp_path / "a", tmp_path / "cache1")
    two = identify(tmp_path / "b", tmp_path / "cache2", seed=3, data__length=8, data__batch_size=2, data__workers=2)
    assert one == two and json.loads(json.dumps(one)) == one
    assert int(one["fingerprint"], 16)
    assert {"source", "files", "bytes", "sha256", "tokenizer", "mixture", "documents"} <= one.keys()
    assert one["tokenizer"] == {"kind": "byte", "vocab_size": 256, "separator": 0}
    assert one["mixture"] == [{"text": 1.0}]


def test_other_data_is_another(tmp_path):
    plain = ("", {})
    cases = {
        "plain": plain,
        "text": (".", {}),
        "characters": ("", {"data__tokenizer": "char"}),
        "file": ("", {"data__tokenizer": str(tmp_path / "a/tokenizer.json")}),
        "packing": ("", {"data__packing": "segments"}),
        "share": ("", {"data__train_share": 0.5}),
        "split": ("", {"data__split": "first"}),
        "mixture": ("", {"data__weights__mqar": 1.0}),
        "other mixture": ("", {"data__weights__mqar": 2.0}),
        "pairs": ("", {"data__weights__mqar": 1.0, "data__mqar__pairs": 2}),
        "vocabulary": ("", {"data__weights__mqar": 1.0, "data__mqar__vocab_size": 32}),
        "stage": ("", {"data__curriculum": ({"steps": 1, "length": 15, "weights": {"text": 0.0, "mqar": 1.0}},)}),
    }
    results = {
        name: identify(tmp_path / "a", tmp_path / "cache", t, **o)["fingerprint"] for name, (t, o) in cases.items()
    }
    assert len(set(results.values())) == len(cases), results


@pytest.mark.parametrize("changes", [{"data__weights__text": 2.0}, {"data__mqar__pairs": 2}, {"name": "x"}])
def test_what_reads_the_same_data_is_the_same(tmp_path, changes):
    plain = identify(tmp_path / "a", tmp_path / "cache")["fingerprint"]
    assert identify(tmp_path / "a", tmp_path / "cache", **changes)["fingerprint"] == plain


def test_without_text():
    one = fingerprint(settings(**MQAR), None, None)
    assert (one["source"], one["files"], one["bytes"], one["tokenizer"]) == ("synthetic", 0, 0, None)
    assert one["mixture"] == [{"mqar": 1.0, "pairs": 4, "mqar_vocab_size": 64}]
    assert one["fingerprint"] != fingerprint(settings(**MQAR, data__mqar__pairs=3), None, None)["fingerprint"]
