"""Passkey rows: exactly as long as asked, the needle once and whole, where it was asked for."""

import numpy as np
import pytest

from configs.errors import UserError
from data import passkey, tokenizers
from tests.data.test_tokenizers import trained

ALPHABET = passkey.NOISE + passkey.NEEDLE + passkey.QUERY + "0123456789"


@pytest.fixture(scope="module", params=["byte", "char", "file"])
def tokenizer(request):
    if request.param == "byte":
        return tokenizers.Bytes()
    return tokenizers.Characters(ALPHABET) if request.param == "char" else tokenizers.FromFile(trained())


@pytest.mark.parametrize("extra", [0, 1, 7, 200, 1000])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_rows(tokenizer, extra, depth):
    length = passkey.shortest(tokenizer) + extra
    found = passkey.rows(tokenizer, seed=0, first=0, count=4, length=length, depth=depth)
    assert found.tokens.shape == (4, length) and found.tokens.dtype == np.int32
    for row, key in enumerate(found.keys):
        ids = found.tokens[row]
        text = tokenizer.decode(ids)
        needle = passkey.NEEDLE.format(key=key)
        assert text.count(needle) == 1
        assert text.endswith(passkey.QUERY + " " + key)
        assert text.count(key) == 2, "in the needle and in the answer"
        assert tokenizer.decode(ids[-found.answer[row] :]) == " " + key
        start, stop = found.needle[row]
        assert tokenizer.decode(ids[start:stop]) == needle
        noise = np.concatenate(
            [ids[:start], ids[stop : length - found.answer[row] - len(tokenizer.encode(passkey.QUERY))]]
        )
        assert start == round(depth * len(noise))
        assert found.depth[row] == pytest.approx(start / max(1, len(noise)))
        whole = tokenizer.decode(noise)
        # The passage again and again, cut at its beginning.
        assert (passkey.NOISE * (1 + len(whole) // len(passkey.NOISE))).endswith(whole)


def test_the_answer_is_tokenised_as_in_the_needle(tokenizer):
    found = passkey.rows(tokenizer, seed=1, first=0, count=20, length=400, depth=0.5)
    for row, size in enumerate(found.answer):
        start, stop = found.needle[row]
        needle, answer = found.tokens[row, start:stop].tolist(), found.tokens[row, -size:].tolist()
        assert any(needle[i : i + size] == answer for i in range(len(needle)))


def test_a_row_depends_on_seed_and_number_alone(tokenizer):
    def keys(seed, first, count, length=300, depth=0.5):
        rows = passkey.rows(tokenizer, seed=seed, first=first, count=count, length=length, depth=depth)
        return list(rows.keys)

    assert keys(0, 0, 12) == [key for first in range(0, 12, 3) for key in keys(0, first, 3)]
    assert keys(0, 0, 12) == keys(0, 0, 12, 500, 0.1), "the same numbers at every length and depth"
    drawn = {tuple(keys(seed, 0, 6)) for seed in (0, 1, 2**32, 2**32 + 1)}
    assert len(drawn) == 4
    assert all(10_000 <= int(key) <= 99_999 for key in keys(0, 0, 50))


def test_more_digits():
    found = passkey.rows(tokenizers.Bytes(), seed=0, first=0, count=9, length=200, depth=0.5, digits=8)
    assert {len(key) for key in found.keys} == {8} and set(found.answer) == {9}


def test_too_short(tokenizer):
    needed = passkey.shortest(tokenizer)
    with pytest.raises(UserError, match="too short: needle, query and answer take"):
        passkey.rows(tokenizer, seed=0, first=0, count=1, length=needed // 2, depth=0.5)


def test_an_alphabet_without_digits():
    with pytest.raises(UserError, match="is not among"):
        passkey.rows(tokenizers.Characters("abc"), seed=0, first=0, count=1, length=200, depth=0.5)
