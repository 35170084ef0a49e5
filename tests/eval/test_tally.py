"""Adding up losses: every token once, padding never, by position and in all."""

import math

import numpy as np
import pytest

from eval.quality import tally


def test_bins_cover_every_position_once():
    for length in (1, 2, 7, 16, 17, 24, 127, 128, 4096):
        covered = [position for start, end in tally.position_bins(length) for position in range(start, end)]
        assert covered == list(range(length))


def test_the_mean_is_over_tokens_not_over_batches():
    # Means 2.0 over 8 tokens and 6.0 over 2 make 2.8, not 4.0.
    total = tally.Tally(8)
    total.add(np.full((1, 8), 2.0), np.ones((1, 8)))
    total.add(np.full((1, 8), 6.0), np.array([[1, 1, 0, 0, 0, 0, 0, 0]]))
    assert total.loss == pytest.approx(2.8) and total.tokens == 10


def test_padding_never_counts_even_when_it_is_not_a_number():
    total = tally.Tally(4)
    total.add(np.array([[1.0, 3.0, np.nan, np.inf]]), np.array([[1, 1, 0, 0]]))
    assert total.loss == 2.0
    assert total.by_position() == {"start": [0, 1], "end": [1, 2], "loss": [1.0, 3.0], "tokens": [1, 1]}


def test_nothing_scored_is_no_loss():
    total = tally.Tally(4)
    total.add(np.ones((1, 4)), np.zeros((1, 4)))
    assert total.loss is None and total.interval(100) is None and total.by_position()["loss"] == []


def test_by_position_follows_the_document_where_rows_are_packed():
    total = tally.Tally(4)
    total.add(np.array([[1.0, 2.0, 10.0, 20.0]]), np.ones((1, 4)), np.array([[0, 1, 0, 1]]))
    assert total.by_position()["loss"] == [5.5, 11.0] and total.by_position()["tokens"] == [2, 2]


def test_by_position_adds_up_to_the_loss():
    generator = np.random.default_rng(0)
    total = tally.Tally(50)
    for rows in (3, 5):
        total.add(generator.random((rows, 50)), generator.integers(0, 2, (rows, 50)))
    curve = total.by_position()
    assert sum(curve["tokens"]) == total.tokens
    assert np.average(curve["loss"], weights=curve["tokens"]) == pytest.approx(total.loss)


def test_the_interval_does_not_depend_on_how_rows_were_batched():
    losses = np.random.default_rng(1).random((60, 8))
    whole, parts = tally.Tally(8), tally.Tally(8)
    whole.add(losses, np.ones_like(losses))
    for start in range(0, 60, 7):
        parts.add(losses[start : start + 7], np.ones_like(losses[start : start + 7]))
    assert whole.loss == parts.loss and whole.interval(200) == parts.interval(200)
    assert whole.interval(200)[0] < whole.loss < whole.interval(200)[1]


def test_bits_per_byte():
    # 100 tokens at ln 16 nats are 400 bits; over 200 bytes, 2 bits a byte.
    assert tally.bits_per_byte(math.log(16), 100, 200) == pytest.approx(2.0)
    # Bytes as tokens: nats to bits.
    assert tally.bits_per_byte(1.0, 7, 7) == pytest.approx(1 / math.log(2))
    assert tally.scale_interval([1.0, 2.0], 3.0) == [3.0, 6.0] and tally.scale_interval(None, 3.0) is None


def test_the_loss_by_document_adds_up_to_the_loss():
    generator = np.random.default_rng(1)
    total = tally.Tally(6)
    expected = np.zeros((2, 12))
    for _ in range(10):
        losses, weights = generator.random((4, 6)), generator.integers(0, 2, (4, 6))
        documents = np.where(weights > 0, generator.integers(0, 12, (4, 6)), -1)
        total.add(losses, weights, None, documents)
        for document in range(12):
            here = documents == document
            expected[:, document] += losses[here].sum(), here.sum()
    result = total.text()
    assert result["unit"] == "documents" and result["tokens"] == expected[1].tolist()
    assert result["loss"] == pytest.approx(expected[0], abs=1e-4)
    assert sum(result["loss"]) / sum(result["tokens"]) == pytest.approx(total.loss, abs=1e-4)


def test_pieces_of_text_are_blocks_where_documents_are_few_and_never_too_many():
    few, many = tally.Tally(100), tally.Tally(100)
    for index in range(100):
        few.add(np.ones((40, 100)), np.ones((40, 100)), None, np.full((40, 100), index % 3))
        many.add(
            np.ones((40, 100)), np.ones((40, 100)), None, index * 40 + np.arange(40)[:, None] + np.zeros((40, 100), int)
        )
    blocks, merged = few.text(), many.text()
    assert blocks["unit"] == "blocks" and 300 < len(blocks["tokens"]) < 500
    assert merged["unit"] == "documents" and len(merged["tokens"]) <= tally.MOST_PIECES
    assert sum(blocks["tokens"]) == sum(merged["tokens"]) == 400_000
    assert tally.Tally(4).text() is None
