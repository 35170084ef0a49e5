"""Tokenizers: text comes back whole, bytes are counted whole, a saved one is the same one."""

import json

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from data import tokenizers
from tests.data.common import open_texts, settings, words, write

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def trained(special=("<|endoftext|>",), normalizer=None, vocab_size=300) -> str:
    """Trains a byte-level BPE and returns its tokenizer.json."""
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([words(1, 400), "The pass key is 12345. Remember it. "], trainer)
    return made.to_str()


@pytest.fixture(scope="module")
def bpe():
    return tokenizers.FromFile(trained())


@given(text=TEXT)
@hypothesis_settings(max_examples=60, deadline=None)
def test_text_comes_back(bpe, text):
    for tokenizer in (tokenizers.Bytes(), tokenizers.Characters(text + "a"), bpe):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32 and ids.ndim == 1
        assert tokenizer.decode(ids) == text
        assert not ids.size or 0 <= ids.min() <= ids.max() < tokenizer.vocab_size


@given(texts=st.lists(TEXT, max_size=5))
@hypothesis_settings(max_examples=60, deadline=None)
def test_bytes_of_tokens_are_the_texts_bytes(bpe, texts):
    normalized = tokenizers.FromFile(trained(normalizer=library.normalizers.Sequence([
        library.normalizers.NFKC(), library.normalizers.Lowercase(), library.normalizers.Strip()])))  # fmt: skip
    for tokenizer in (tokenizers.Bytes(), tokenizers.Characters("".join(texts)), bpe, normalized):
        result = list(tokenizer.encode_all(texts))
        assert len(result) == len(texts)
        for text, (ids, counts) in zip(texts, result, strict=True):
            assert np.array_equal(ids, tokenizer.encode(text))
            assert len(counts) == len(ids) and counts.dtype == np.int32
            assert counts.sum() == (len(text.encode()) if len(ids) else 0)
            assert not counts.size or counts.min() >= 0


def test_bytes_of_tokens_are_those_of_their_own_text(bpe):
    ((ids, counts),) = bpe.encode_all(["the \u00e9t\u00e9 of \U0001f600 1 2"])
    at = 0
    for token, count in zip(ids, counts, strict=True):
        piece = "the \u00e9t\u00e9 of \U0001f600 1 2".encode()[at : at + count]
        at += count
        if piece and "\ufffd" not in bpe.decode([token]):
            assert bpe.decode([token]).encode() == piece


def test_bytes_of_tokens_whose_ends_run_back():
    """Some tokenizers cut white space off a token's place, so that a later one may end before an earlier one."""
    assert tokenizers._byte_counts("a\u00e9 b ", np.array([1, 3, 2, 4])).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("kind", ["byte", "char", "file"])
def test_saved_and_restored(tmp_path, kind, bpe):
    tokenizer = {
        "byte": tokenizers.Bytes(),
        "char": tokenizers.Characters("\n\r\x00\u2028 abc\U0001f600"),
        "file": bpe,
    }[kind]
    tokenizer.save(tmp_path / "new" / "folder")
    again = tokenizers.restore(tmp_path / "new" / "folder")
    assert again.describe() == tokenizer.describe()
    assert again.describe()["kind"] == kind
    assert json.loads(json.dumps(again.describe())) == again.describe()
    assert (again.vocab_size, again.separator) == (tokenizer.vocab_size, tokenizer.separator)
    assert again.encode("abc a").tolist() == tokenizer.encode("abc a").tolist()


def test_a_saved_file_needs_its_source_no_more(tmp_path, bpe):
    source = write(tmp_path, {"tokenizer.json": trained()}) / "tokenizer.json"
    loaded = tokenizers.load(settings(data__tokenizer=str(source)).data, None)
    loaded.save(tmp_path / "run")
    source.unlink()
    assert tokenizers.restore(tmp_path / "run").encode("the of").tolist() == bpe.encode("the of").tolist()


def test_a_folder_with_a_tokenizer_is_enough(tmp_path, bpe):
    write(tmp_path, {"tokenizer.json": trained()})
    assert tokenizers.load(settings(data__tokenizer=str(tmp_path)).data, None).describe() == bpe.describe()


def test_an_unknown_character_is_named():
    with pytest.raises(UserError, match=r"'\u00e9' is not among the char tokenizer's 3"):
        tokenizers.Characters("abc").encode("ab\u00e9c")
    with pytest.raises(UserError, match="'0' is not"):
        tokenizers.Characters("abc").encode("0")


def test_characters_are_those_of_both_splits_in_order(tmp_path):
    path = write(tmp_path, {"a.txt": "b" * 80 + "a" * 18 + "zc"}) / "a.txt"
    corpus = open_texts(path, tmp_path / "cache", data__split="first")
    tokenizer = tokenizers.load(settings(data__path=str(path), data__tokenizer="char").data, corpus)
    assert tokenizer.encode("abcz").tolist() == [0, 1, 2, 3]
    assert tokenizer.vocab_size == 4


def test_special_tokens_in_a_text_are_text(bpe):
    ids = bpe.encode("a<|endoftext|>b")
    assert bpe.separator is not None and bpe.separator not in ids
    assert bpe.decode(ids) == "a<|endoftext|>b"
    assert bpe.decode([bpe.separator]) == "<|endoftext|>"


def test_separators_and_vocabularies():
    assert tokenizers.Bytes().separator == 0
    assert tokenizers.FromFile(trained(special=())).separator is None
    assert tokenizers.FromFile(trained(special=("<pad>", "</s>"))).separator == 1
    gaps = library.Tokenizer(library.models.WordLevel({"a": 0, "[UNK]": 1, "b": 7}, unk_token="[UNK]"))
    assert tokenizers.FromFile(gaps.to_str()).vocab_size == 8, "one more than the largest id"


def test_truncation_and_padding_of_a_file_are_off():
    made = library.Tokenizer.from_str(trained())
    made.enable_truncation(4)
    made.enable_padding(length=50)
    assert len(tokenizers.FromFile(made.to_str()).encode(words(0, 8))) not in (4, 50)
    assert tokenizers.FromFile(made.to_str()).decode(tokenizers.FromFile(made.to_str()).encode("the of")) == "the of"


def test_ids_that_are_no_text_do_not_fail(bpe):
    assert tokenizers.Bytes().decode([72, 300, -1, 105]) == "H\ufffd\ufffdi"
    assert tokenizers.Characters("ab").decode([0, 5, 1]) == "a\ufffdb"
    assert bpe.decode([*bpe.encode("the"), 10_000]) == "the"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "\xff"])
def test_what_is_no_tokenizer_json(tmp_path, content):
    path = write(tmp_path, {"t.json": content.encode("latin-1")}) / "t.json"
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        tokenizers.load(settings(data__tokenizer=str(path)).data, None)


def test_loading_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"must be byte, char or a tokenizer\.json, or none for token files"):
        tokenizers.load(settings(data__tokenizer=str(tmp_path / "no.json")).data, None)
    with pytest.raises(UserError, match="needs a text"):
        tokenizers.load(settings(data__tokenizer="char").data, None)
    with pytest.raises(UserError, match="has no tokenizer"):
        tokenizers.restore(tmp_path)
    write(tmp_path, {tokenizers.DESCRIPTION: '{"kind": "word"}'})
    with pytest.raises(UserError, match="unknown kind 'word'"):
        tokenizers.restore(tmp_path)
