"""Rows of text: what an epoch covers, what a row may hold, and that a row depends on nothing but its number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from data.packing import Contiguous, Packed, Segments
from tests.data.common import Batch, Stream, same, scored

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda sizes: max(sizes) > 1)
LENGTH = st.integers(1, 20)


def pieces(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Takes rows apart by their segment ids alone; returns (inputs, targets) of each piece."""
    results = []
    for row in range(len(batch["tokens"])):
        segments = batch["segments"][row]
        assert np.array_equal(np.unique(segments[segments > 0]), np.arange(1, segments.max() + 1))
        assert np.array_equal(batch["weights"][row], segments > 0)
        for name in ("tokens", "targets", "positions"):
            assert not batch[name][row][segments == 0].any()
        for number in range(1, segments.max() + 1):
            here = np.flatnonzero(segments == number)
            assert np.array_equal(here, np.arange(here[0], here[0] + len(here))), "a segment is in one stretch"
            assert np.array_equal(batch["positions"][row][here], np.arange(len(here)))
            results.append((batch["tokens"][row][here].tolist(), batch["targets"][row][here].tolist()))
    return results


@pytest.mark.fault(17)
@given(SIZES, LENGTH)
@hypothesis_settings(max_examples=60, deadline=None)
def test_segments_keep_documents_apart_and_lose_nothing(sizes, length):
    stream = Stream(sizes)
    packed = Packed(stream, length)
    result = sorted(pieces(packed.rows(np.arange(len(packed)))))
    rebuilt = iter(result)
    for document in stream.documents():
        inputs, targets = [], []
        # A document that fits is whole, a longer one is cut into as few pieces as can be.
        for _ in range(-(-(len(document) - 1) // length) if document else 0):
            more_inputs, more_targets = next(rebuilt)
            inputs += more_inputs
            targets += more_targets
        assert inputs == list(document)[:-1]
        assert targets == list(document)[1:]
    assert next(rebuilt, None) is None


@given(SIZES, LENGTH)
@hypothesis_settings(max_examples=60, deadline=None)
def test_no_two_rows_of_segments_would_fit_into_one(sizes, length):
    packed = Packed(Stream(sizes), length)
    filled = np.sort((packed.rows(np.arange(len(packed)))["segments"] > 0).sum(axis=1))
    assert len(filled) == 1 or filled[0] + filled[1] > length


def test_segments_show_every_row_once_an_epoch_in_another_order_each():
    stream = Stream([9, 3, 17, 5, 1, 30, 8, 2, 11])
    packed = Segments(stream, 8, seed=3, stage=0)
    rows = len(Packed(stream, 8))
    epochs = [packed.rows(epoch * rows, rows) for epoch in range(4)]
    expected = sorted(token for document in stream.documents() for token in list(document)[1:])
    orders = [scored(epoch) for epoch in epochs]
    assert all(sorted(order) == expected for order in orders)
    assert len({tuple(order) for order in orders}) == 4


@given(st.integers(2, 200), LENGTH, st.integers(0, 2**64), st.integers(0, 3))
@hypothesis_settings(max_examples=25, deadline=None)
def test_contiguous_rows_cover_the_stream_once_an_epoch(tokens, length, seed, stage):
    stream = Stream([tokens])
    if tokens <= length:
        with pytest.raises(UserError, match=f"{tokens} tokens"):
            Contiguous(stream, length, seed, stage)
        return
    source = Contiguous(stream, length, seed, stage)
    per_epoch = tokens // length
    for epoch in range(3):
        batch = source.rows(epoch * per_epoch, per_epoch)
        assert batch.keys() == {"tokens", "targets", "weights"}
        # Each target is the token behind its input, around the ring.
        assert np.array_equal(batch["targets"], (batch["tokens"] + 1) % tokens)
        assert np.array_equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
        targets = scored(batch)
        assert len(set(targets)) == len(targets) == per_epoch * length > tokens - length


def test_contiguous_epochs_differ_in_order_and_phase():
    source = Contiguous(Stream([100, 57, 43]), 10, seed=0, stage=0)
    epochs = [source.rows(20 * epoch, 20)["tokens"][:, 0] for epoch in range(5)]
    assert len({tuple(starts % 10) for starts in epochs}) == 5
    assert len({int(starts.min()) for starts in epochs}) > 1, "windows begin at another phase"
    together = [source.rows(20 * epoch, 20)["targets"].ravel() for epoch in range(5)]
    assert set(np.concatenate(together).tolist()) == set(range(200)), "what one epoch leaves out another has"


@pytest.mark.parametrize("kind", [Contiguous, Segments])
def test_a_row_depends_on_its_number_alone(kind):
    stream = Stream([30, 4, 18, 50, 7])
    source, other = kind(stream, 6, 5, 1), kind(stream, 6, 5, 1)
    together = source.rows(0, 40)
    apart = [other.rows(row, 1) for row in reversed(range(40))][::-1]
    assert same(together, {name: np.concatenate([row[name] for row in apart]) for name in together})


@pytest.mark.parametrize("kind", [Contiguous, Segments])
def test_seeds_and_stages_have_orders_of_their_own(kind):
    stream = Stream([30, 4, 18, 50, 7, 90])
    orders = {
        (seed, stage): tuple(kind(stream, 6, seed, stage).rows(0, 12)["tokens"].ravel().tolist())
        for seed in (0, 1, 2**32, 2**32 + 1, 2**63 - 1)
        for stage in (0, 1)
    }
    assert len(set(orders.values())) == len(orders)


def test_types():
    stream = Stream([30, 4, 18])
    for batch in (Contiguous(stream, 6, 0, 0).rows(0, 3), Segments(stream, 6, 0, 0).rows(0, 3)):
        for name, values in batch.items():
            assert values.dtype == (np.float32 if name == "weights" else np.int32), name
            assert values.shape == (3, 6)


def test_documents_of_one_token_predict_nothing():
    with pytest.raises(UserError, match="nothing to predict"):
        Segments(Stream([1, 1, 0, 1]), 4, 0, 0)
