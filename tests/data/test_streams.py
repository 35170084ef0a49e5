"""Splits as arrays of tokens: every document in its place, encoded once for each tokenizer."""

import pickle

import numpy as np

from data import cache, streams, tokenizers
from tests.data.common import open_texts, words, write
from tests.data.test_tokenizers import trained


def test_every_document_in_its_place_encoded_once(tmp_path):
    write(tmp_path / "in", {f"{i}.txt": words(i, 20) + " \u00e9\U0001f600" for i in range(20)})
    corpus = open_texts(tmp_path / "in/*.txt", tmp_path / "cache")
    characters = tokenizers.Characters("".join([*corpus.train, *corpus.validation]))
    for tokenizer in (tokenizers.Bytes(), characters, tokenizers.FromFile(trained()), tokenizers.Bytes()):
        for split, texts in (("train", corpus.train), ("validation", corpus.validation)):
            stream = streams.open_stream(corpus, tokenizer, split)
            end = "" if tokenizer.separator is None else tokenizer.decode([tokenizer.separator])
            bounds = zip(stream.starts[:-1], stream.starts[1:], strict=True)
            assert [tokenizer.decode(stream.tokens[a:b]) for a, b in bounds] == [text + end for text in texts]
            assert len(stream) == len(stream.tokens) == stream.starts[-1]
            assert stream.separated == (tokenizer.separator is not None)
        assert len(stream.byte_counts) == len(stream)
        assert stream.byte_counts.sum() == sum(len(text.encode()) for text in corpus.validation)
        if stream.separated:
            assert not stream.byte_counts[stream.tokens == tokenizer.separator].any()
    assert len(list((tmp_path / "cache/tokens").rglob(cache.MARKER))) == 3 * 2


def test_sent_to_another_process_it_is_opened_anew(tmp_path):
    write(tmp_path, {"a.txt": words(0, 20_000)})
    stream = streams.open_stream(open_texts(tmp_path / "a.txt", tmp_path / "cache"), tokenizers.Bytes(), "train")
    assert len(stream.tokens) > 50_000
    sent = pickle.dumps(stream)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).tokens, stream.tokens)
