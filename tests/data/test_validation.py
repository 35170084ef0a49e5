"""The validation split: every token once, whatever the length and the batch size (nanochat #286)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from data import pipeline, tokenizers
from data.validation import Validation
from tests.data.common import Stream, open_texts, scored, settings, words, write

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda sizes: max(sizes) > 2)
PACKING = st.sampled_from(["contiguous", "segments"])


def expected(stream: Stream, packing: str) -> list[int]:
    if packing == "segments":
        return [token for document in stream.documents() for token in list(document)[1:]]
    return list(range(1, len(stream) - stream.separated))


@given(SIZES, st.booleans(), PACKING, st.integers(1, 25), st.integers(1, 9))
@hypothesis_settings(max_examples=150, deadline=None)
def test_every_token_after_the_first_is_scored_once(sizes, separated, packing, length, batch_size):
    stream = Stream(sizes, separated, "validation")
    result = Validation(stream, packing, length=length, batch_size=batch_size)
    batches = list(result)
    targets = [target for batch in batches for target in scored(batch)]
    required = expected(stream, packing)
    assert sorted(targets) == required
    assert result.tokens == len(required)
    assert result.bytes == sum(int(stream.byte_counts[token]) for token in required)
    assert len(batches) == len(result)
    for batch in batches:
        counts = batch["weights"] > 0
        assert batch["tokens"].shape == (batch_size, length)
        assert np.array_equal(batch["tokens"][counts] + 1, batch["targets"][counts])
        assert set(np.unique(batch["weights"])) <= {0, 1}
        assert not batch["targets"][~counts].any()
        if packing == "segments":
            assert np.array_equal(batch["segments"] > 0, counts)
        else:
            assert "segments" not in batch


@given(SIZES, PACKING, st.integers(1, 25), st.integers(1, 9), st.integers(1, 200))
@hypothesis_settings(max_examples=60, deadline=None)
def test_rows_do_not_depend_on_the_batch_size(sizes, packing, length, batch_size, most):
    stream = Stream(sizes, split="validation")
    one = Validation(stream, packing, length=length, batch_size=1, max_tokens=most)
    many = Validation(stream, packing, length=length, batch_size=batch_size, max_tokens=most)
    for name in next(iter(one)):
        rows = np.concatenate([batch[name] for batch in many])
        assert np.array_equal(rows[: one.rows], np.concatenate([batch[name] for batch in one]))
        assert not rows[one.rows :].any(), "rows that fill up the last batch are empty"


def test_a_part_of_the_split_is_spread_over_all_of_it():
    result = Validation(Stream([1001], split="validation"), "contiguous", length=10, batch_size=4, max_tokens=95)
    targets = [target for batch in result for target in scored(batch)]
    assert result.rows == 10 and result.tokens == len(targets) == 100
    assert targets[0] == 1 and targets[-1] > 900
    gaps = np.diff(np.array(targets).reshape(10, 10)[:, 0])
    assert gaps.min() == gaps.max() == 100
    assert Validation(Stream([1001]), "contiguous", length=10, batch_size=4, max_tokens=10**9).tokens == 999


def test_it_can_be_read_again():
    result = Validation(Stream([9, 30, 4], split="validation"), "segments", length=7, batch_size=2)
    assert [scored(batch) for batch in result] == [scored(batch) for batch in result]


def test_a_split_shorter_than_a_row_is_one_row():
    (batch,) = Validation(Stream([6], split="validation"), "contiguous", length=50, batch_size=2)
    assert scored(batch) == [1, 2, 3, 4]


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_nothing_to_predict(packing):
    with pytest.raises(UserError, match="nothing to predict"):
        Validation(Stream([1, 0], split="validation"), packing, length=4, batch_size=2)


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
def test_of_a_text(tmp_path, tokenizer):
    """The whole way: the text's last tenth, its first character not predicted, with every byte counted."""
    text = words(0, 500) + " h\u00e9\u4e16\U0001f600" * 20
    folder = write(tmp_path / "in", {"a.txt": text})
    config = settings(
        data__path=str(folder / "a.txt"),
        data__cache_dir=str(tmp_path / "cache"),
        data__split="first",
        data__tokenizer=tokenizer,
    )
    corpus = open_texts(folder / "a.txt", tmp_path / "cache", data__split="first")
    held_out = text[int(0.9 * len(text)) :]
    made = tokenizers.load(config.data, corpus)
    result = pipeline.validation(config, made, corpus, length=13, batch_size=3)
    ids = [int(i) for batch in result for i in batch["targets"][batch["weights"] > 0]]
    everything = made.encode(held_out)
    assert ids == everything[1:].tolist()
    assert result.bytes == len(held_out.encode()) - len(made.decode(everything[:1]).encode(errors="replace"))
