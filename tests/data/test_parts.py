"""The two parts of the validation split: nothing is in both, nothing is lost, and every tokenizer cuts alike."""

import numpy as np
import pytest

from data import parts, pipeline, tokenizers
from data.validation import Validation
from tests.data.common import Stream, open_texts, settings, words, write


def test_documents_go_to_one_part_each_and_new_ones_move_none():
    texts = [words(seed, 30) for seed in range(40)]
    results = {}
    for number in (30, 40):
        stream = Stream([20] * number, split="validation")
        for name in parts.PARTS:
            results[number, name] = parts.part(stream, texts[:number], name)
    for number in (30, 40):
        both = [results[number, name].tokens.tolist() for name in parts.PARTS]
        assert not set(both[0]) & set(both[1]) and sorted(both[0] + both[1]) == list(range(20 * number))
        for name in parts.PARTS:
            one = results[number, name]
            assert len(one) == one.starts[-1] and np.diff(one.starts).tolist() == [20] * (len(one.starts) - 1)
            assert np.array_equal(one.byte_counts, one.tokens % 7)
    assert set(results[30, "selection"].tokens.tolist()) < set(results[40, "selection"].tokens.tolist())


@pytest.mark.parametrize("separated", [True, False])
def test_one_long_document_is_cut_in_its_middle(separated):
    stream = Stream([1000], separated, "validation")
    first, second = (parts.part(stream, ["x"], name) for name in parts.PARTS)
    body = first.tokens[:-1] if separated else first.tokens
    assert body.tolist() + second.tokens.tolist() == list(range(1000))
    assert 480 < len(body) < 520
    if separated:
        assert first.tokens[-1] == second.tokens[-1] == 999, "each half ends with the separator"


@pytest.mark.parametrize("kinds", [("byte", "char")])
def test_tokenizers_agree_on_the_documents_and_training_validation_is_all_of_them(tmp_path, kinds):
    folder = write(tmp_path / "in", {f"{k}.txt": words(k, 40 + k) for k in range(60)})
    corpus = open_texts(folder / "*.txt", tmp_path / "cache", data__train_share=0.5)
    scored = {}
    for kind in kinds:
        config = settings(
            data__path=str(folder / "*.txt"), data__cache_dir=str(tmp_path / "cache"), data__tokenizer=kind,
            data__train_share=0.5, data__packing="segments",
        )  # fmt: skip
        made = tokenizers.load(config.data, corpus)
        for name in parts.SPLITS:
            result = pipeline.validation(config, made, corpus, length=13, batch_size=3, part=name)
            scored[kind, name] = result.bytes
        whole = pipeline.validation(config, made, corpus, length=13, batch_size=3)
        assert whole.bytes == scored[kind, "validation"]
    for name in parts.SPLITS:
        assert scored["byte", name] == scored["char", name]
    assert scored["byte", "selection"] + scored["byte", "test"] == scored["byte", "validation"]


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_every_scored_token_is_told_its_document(packing):
    stream = Stream([30, 1, 55, 8], split="validation")
    result = Validation(stream, packing, length=11, batch_size=2)
    for batch, documents in zip(result, result.documents(), strict=True):
        counts = batch["weights"] > 0
        assert np.array_equal(documents >= 0, counts)
        inside = np.searchsorted(stream.starts, batch["targets"][counts], "right") - 1
        assert np.array_equal(documents[counts], inside)
