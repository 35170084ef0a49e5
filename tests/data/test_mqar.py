"""Key-value recall: rows are what the task says, read from tokens alone; held-out rows are never trained on."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from configs.errors import UserError
from data import mqar
from tests.data.common import same, settings

SETTINGS = [(15, 4, 64), (20, 4, 8), (63, 16, 64), (3, 1, 8), (40, 3, 32)]


def check(batch, vocab_size):
    """Reads rows as a human would; returns the pairs and the order they are asked in, for each row."""
    half, result = vocab_size // 2, []
    for tokens, targets, weights in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
        row = np.append(tokens, targets[-1]).tolist()
        assert targets.tolist() == row[1:]
        m = int(weights.sum())
        message, requested, padding = row[: 2 * m], row[2 * m : 4 * m], row[4 * m :]
        pairs = dict(zip(message[::2], message[1::2], strict=True))
        assert len(pairs) == m, "keys are distinct"
        assert all(0 <= key < half <= value < vocab_size for key, value in pairs.items())
        assert sorted(requested[::2]) == sorted(pairs), "every key is asked for once"
        assert [pairs[key] for key in requested[::2]] == requested[1::2]
        assert not any(padding)
        # Scored exactly where the input is a question and the target its answer.
        assert np.flatnonzero(weights).tolist() == [2 * m + 2 * query for query in range(m)]
        result.append((pairs, [list(pairs).index(key) for key in requested[::2]]))
    return result


@pytest.mark.parametrize(("length", "pairs", "vocab_size"), SETTINGS)
def test_training_rows_are_well_formed(length, pairs, vocab_size):
    batch = mqar.rows(7, 100, 300, length=length, pairs=pairs, vocab_size=vocab_size)
    assert batch["tokens"].shape == (300, length)
    assert {name: values.dtype.name for name, values in batch.items()} == {
        "tokens": "int32",
        "targets": "int32",
        "weights": "float32",
    }
    assert {len(result) for result, _ in check(batch, vocab_size)} == set(range(1, pairs + 1))


@pytest.mark.parametrize(("length", "pairs", "vocab_size"), SETTINGS)
@pytest.mark.parametrize("fixed", [True, False])
def test_evaluation_rows_are_well_formed(length, pairs, vocab_size, fixed):
    batch = mqar.evaluation_rows(7, 0, 100, length=length, pairs=pairs, vocab_size=vocab_size, fixed=fixed)
    depths = batch.pop("depths")
    result = check(batch, vocab_size)
    assert {len(message) for message, _ in result} == ({pairs} if fixed else set(range(1, pairs + 1)))
    for (message, order), row, weights in zip(result, depths, batch["weights"], strict=True):
        assert np.array_equal(~np.isnan(row), weights > 0)
        assert np.allclose(row[weights > 0], np.array(order) / len(message))


@pytest.mark.parametrize("vocab_size", [8, 64])
def test_the_number_of_pairs_is_uniform_and_so_is_the_order(vocab_size):
    result = check(mqar.rows(0, 0, 12_000, length=15, pairs=4, vocab_size=vocab_size), vocab_size)
    numbers = Counter(len(pairs) for pairs, _ in result)
    assert stats.chisquare([numbers[m] for m in range(1, 5)]).pvalue > 1e-3, numbers
    orders = Counter(tuple(order) for pairs, order in result if len(pairs) == 3)
    assert len(orders) == 6 and stats.chisquare(list(orders.values())).pvalue > 1e-3, orders
    firsts = Counter(next(iter(pairs)) for pairs, _ in result if len(pairs) > 1)
    if vocab_size > 8:  # in tiny vocabularies the rows held out are no even share of every key's
        assert len(firsts) == vocab_size // 2 and stats.chisquare(list(firsts.values())).pvalue > 1e-3


def test_held_out_rows_are_never_trained_on():
    """In a vocabulary so small that all rows come up: each of the 112 sets of pairs is on one side only."""
    setting = {"length": 7, "pairs": 2, "vocab_size": 8}
    trained, held_out = (
        {frozenset(pairs.items()) for seed in (0, 1) for pairs, _ in check(make(seed), 8)}
        for make in (
            lambda seed: mqar.rows(seed, 0, 3000, **setting),
            lambda seed: mqar.evaluation_rows(seed, 0, 3000, **setting, fixed=False),
        )
    )
    assert not trained & held_out
    assert len(trained | held_out) == 4 * 4 + 6 * 4 * 4
    assert 5 <= len(held_out) <= 25


def test_a_row_depends_on_its_number_alone():
    setting = {"length": 15, "pairs": 4, "vocab_size": 16}
    for make in (mqar.rows, mqar.evaluation_rows):
        together = make(3, 10, 50, **setting)
        parts = [make(3, 10 + first, count, **setting) for first, count in ((0, 1), (1, 30), (31, 19))]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in together}
        for name, values in together.items():
            assert np.array_equal(values, joined[name], equal_nan=name == "depths")


def test_seeds_and_stages_draw_other_rows():
    setting = {"length": 15, "pairs": 4, "vocab_size": 64}
    drawn = [mqar.rows(seed, 0, 8, stage=stage, **setting) for seed in (0, 1, 2**32, 2**40) for stage in (0, 1)]
    assert len({batch["tokens"].tobytes() for batch in drawn}) == len(drawn)
    assert same(mqar.rows(2**40, 0, 8, stage=1, **setting), drawn[-1])


def test_rows_beside_packed_documents_mark_their_padding():
    batch = mqar.rows(0, 0, 50, length=20, pairs=4, vocab_size=16, segments=True)
    for row, (pairs, _) in enumerate(check(batch, 16)):
        inputs = 4 * len(pairs) - 1
        assert batch["segments"][row].tolist() == [1] * inputs + [0] * (20 - inputs)
        assert batch["positions"][row, :inputs].tolist() == list(range(inputs))


def test_evaluation_batches_hold_the_same_rows_whatever_the_batch_size():
    config = settings(data__weights__text=0.0, data__weights__mqar=1.0, data__length=15)
    big, small = (list(mqar.evaluation(config, length=15, batch_size=size, rows=50)) for size in (50, 16))
    assert [len(batch["tokens"]) for batch in small] == [16] * 4
    for name in ("tokens", "targets", "weights"):
        rows = np.concatenate([batch[name] for batch in small])
        assert np.array_equal(rows[:50], big[0][name])
        assert not rows[50:].any()


def test_evaluation_holds_more_pairs_at_longer_lengths():
    config = settings(data__weights__text=0.0, data__weights__mqar=1.0, data__length=15)
    (batch,) = mqar.evaluation(config, length=31, batch_size=400, rows=400)
    assert max(len(pairs) for pairs, _ in check(batch, 64)) == 8


@pytest.mark.parametrize(
    "setting", [{"length": 14, "pairs": 4, "vocab_size": 64}, {"length": 99, "pairs": 5, "vocab_size": 8}]
)
def test_too_many_pairs(setting):
    with pytest.raises(UserError, match="key-value pairs need a length of"):
        mqar.evaluation_rows(0, 0, 1, **setting)
