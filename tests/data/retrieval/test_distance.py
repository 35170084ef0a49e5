"""Where answers can be read: each task's rows hold one copy of what they ask, as far back as they say."""

import numpy as np
import pytest

from configs.rules import tasks
from data import mqar, retrieval
from data.retrieval import Draw, FarPairs, Mqar, PairTask
from data.retrieval.compositional_mqar import CompositionalMqar
from data.retrieval.forgetting_mqar import ForgettingMqar
from data.retrieval.mqar_gaps import MqarGaps
from tests.data.retrieval.common import made, stream

DRAW = Draw(3, held_out=True)
SHORT = {"form": "short", "digits": 3}
OTHERS = (ForgettingMqar(6, 64), CompositionalMqar(9, 64), CompositionalMqar(9, 64, 0.01, True))
PAIRS = (Mqar(6, 64), MqarGaps(6, 64), MqarGaps(6, 64, 0.01, True))


def occurrences(row: np.ndarray, piece: np.ndarray) -> list[int]:
    """Returns the first columns at which a piece stands in a row."""
    windows = np.lib.stride_tricks.sliding_window_view(row, len(piece))
    return np.flatnonzero((windows == piece).all(axis=1)).tolist()


def far_rows(task, filler: str, length: int, count: int = 6):
    result = retrieval.far(task, filler, power=0.01, text=lambda: stream("byte"))
    assert result.reason(None) is None
    return result.rows(DRAW, 0, count, length=length)


@pytest.mark.parametrize("filler", ["auto", *tasks.FILLERS])
@pytest.mark.parametrize("task", PAIRS, ids=str)
@pytest.mark.parametrize("length", [24, 95, 256])
def test_a_counted_pair_stands_once_before_it_is_asked(task, filler, length):
    """By the tokens alone: of each counted pair there is the copy among the pairs and the answer, and no other key."""
    rows = far_rows(task, filler, length)
    assert rows.tokens.shape == (6, length) and (rows.pairs == 6).all()
    # As many are asked as half of the pairs, at the end, each once.
    assert rows.spans.shape == (6, 3, 2) and rows.ends.tolist() == [length - length % 2] * 6
    for row, tokens in enumerate(rows.tokens):
        keys = tokens[:12:2].tolist()
        assert len(set(keys)) == 6
        for (start, end), depth, distance in zip(
            rows.spans[row].tolist(), rows.depths[row], rows.distances[row].tolist(), strict=True
        ):
            assert end == start + 1 and rows.scored[row, start]
            index = keys.index(tokens[start - 1])
            assert tokens[start] == tokens[2 * index + 1] and depth == index / 6
            assert occurrences(tokens[:end], tokens[[start - 1]]) == [2 * index, start - 1]
            assert distance == start - (2 * index + 1)
        assert rows.scored[row].sum() == 3


@pytest.mark.parametrize("filler", ["auto", *tasks.FILLERS])
@pytest.mark.parametrize("task", OTHERS, ids=str)
def test_what_is_asked_from_far_was_told_at_the_beginning(task, filler):
    """The last pair with the asked key, of all that the row tells; between it and its question the key is not asked."""
    rows = far_rows(task, filler, 257)
    keys = 2 if isinstance(task, CompositionalMqar) else 1
    told = task.shortest() - (keys + 1) * task.needles
    assert rows.spans.shape[1] == -(-task.needles // 2)
    for row, tokens in enumerate(rows.tokens):
        for (start, end), distance in zip(rows.spans[row].tolist(), rows.distances[row].tolist(), strict=True):
            places = occurrences(tokens[:end], tokens[start - keys : start])
            assert places[-1] == start - keys and places[-2] < told
            assert tokens[places[-2] + keys] == tokens[start] and distance == start - (places[-2] + keys) > 200


@pytest.mark.parametrize("task", PAIRS, ids=str)
def test_filler_is_what_the_setting_names(task):
    pairs = 12
    questions = far_rows(task, "questions", 96).tokens[:, pairs:-6]
    message = far_rows(task, "questions", 96).tokens[:, :pairs]
    for row, filled in zip(message, questions, strict=True):
        known = dict(zip(row[::2].tolist(), row[1::2].tolist(), strict=True))
        requested = filled[::2].tolist()
        assert filled[1::2].tolist() == [known[key] for key in requested]
        counts = [requested.count(key) for key in set(requested)]
        assert len(counts) == 3 and max(counts) - min(counts) <= 1  # the other pairs, round after round
    gaps = far_rows(task, "gaps", 96)
    for row in gaps.tokens:
        keys = set(row[:pairs:2].tolist())
        assert sum(token in keys for token in row[pairs:-6].tolist()) == 3  # each other pair once
    text = far_rows(task, "text", 96)
    held = stream("byte").tokens.tolist()
    for row in text.tokens:
        filled, keys = row[pairs:-6].tolist(), set(row[:pairs:2].tolist())
        rest = [token for token in held + held if token not in keys]
        assert str(filled)[1:-1] in str(rest)


def test_rows_of_pairs_do_not_depend_on_how_many_are_drawn():
    for filler in tasks.FILLERS:
        result = retrieval.far(PAIRS[0], filler, power=0.01, text=lambda: stream("byte"))
        whole, part = result.rows(DRAW, 0, 9, length=70), result.rows(DRAW, 4, 3, length=70)
        np.testing.assert_array_equal(whole.tokens[4:7], part.tokens)
        np.testing.assert_array_equal(whole.distances[4:7], part.distances)


def test_one_pair_alone_is_asked_behind_gaps_and_a_full_vocabulary_leaves_none():
    (row,) = FarPairs(Mqar(1, 64), "questions").rows(DRAW, 0, 1, length=40).tokens
    assert row[-2:].tolist() == row[:2].tolist() and row[0] not in row[2:-2]
    assert "leave no filler of 16 tokens" in FarPairs(Mqar(8, 16), "gaps").reason(None)
    assert FarPairs(Mqar(8, 16), "questions").reason(None) is None
    assert "reads no text" in FarPairs(Mqar(8, 16), "text").reason(None)


def test_rows_within_the_training_length_are_those_of_training():
    """Bare recall with room to spare is padded; with the number of pairs varied it is what training validates on."""
    rows = Mqar(4, 64).rows(DRAW, 0, 5, length=64)
    assert (rows.tokens[:, 16:] == 0).all() and (rows.distances > 0).all() and rows.spans.shape == (5, 4, 2)
    expected = mqar.evaluation_rows(3, 0, 5, length=15, pairs=4, vocab_size=64)
    np.testing.assert_array_equal(rows.tokens[:, :15], expected["tokens"])
    varied = Mqar(4, 64).rows(DRAW, 0, 50, length=64, vary=True)
    expected = mqar.evaluation_rows(3, 0, 50, length=63, pairs=4, vocab_size=64, fixed=False)
    for name, result in varied.batch().items():
        np.testing.assert_array_equal(result, expected[name])
    assert set(varied.pairs.tolist()) == {1, 2, 3, 4}


def asked_at(name: str, length: int, depth: float | None):
    if name in tasks.IN_FILES:  # whole paragraphs
        length *= 3
    if name == "mqar":
        return far_rows(Mqar(4, 64), "auto", length, 20)
    task = made(name, needles=4, **SHORT)
    if isinstance(task, PairTask):
        return far_rows(task, "auto", length, 20)
    return task.rows(DRAW, 0, 20, length=length, depth=None if task.all_depths else depth)


@pytest.mark.parametrize("name", tasks.SYNTHETIC)
def test_the_nearest_copy_is_farther_in_longer_rows(name):
    """Of the needle at a depth (one of several may lie anywhere); of every answer where a row asks at all depths."""
    lengths = [200, 400, 800, 1600]
    whole = 3 if name in tasks.IN_FILES else 1  # how much longer its rows are
    several = name in ("niah_multivalue", "niah_multiquery", "variable_tracking", "cwe", "fwe")
    for depth in (0.0, 0.5):
        results = [asked_at(name, length, depth).distances for length in lengths]
        farthest = np.array([np.median(x.max(axis=1) if several else x) for x in results])
        grows = 0.25 if name == "fwe" else 0.35  # its words have more copies in longer rows
        assert (np.diff(farthest) > grows * whole * np.diff(lengths)).all(), farthest
        share = 0.3 if name == "selective_copy" else (0.6 if name == "fwe" else 0.9) * (1 - depth)
        if name in tasks.FILLED:
            assert min(x.min() for x in results[2:]) > 700  # every answer, from the row's beginning
        elif name != "variable_tracking":
            assert (farthest > share * whole * np.array(lengths) - 150 * whole).all()


@pytest.mark.parametrize("name", tasks.TASKS)
def test_no_nearer_copy_than_the_row_says(name):
    """Every answer's tokens, sought in the row by themselves: nothing between the distance and the question."""
    if name == "selective_copy":
        pytest.skip("a token may be drawn twice; its place is what is asked for")
    rows = asked_at(name, 400, None)
    for row, tokens in enumerate(rows.tokens):
        for (start, end), distance in zip(rows.spans[row].tolist(), rows.distances[row].tolist(), strict=True):
            if end == 0:
                continue
            answer = tokens[start:end]
            # A pair's value may be another's too: it is the pair that is sought.
            pair = name in tasks.FILLED
            piece = tokens[start - 1 : end] if pair else answer
            result = occurrences(tokens[: start - 1 if pair else rows.prompts[row]], piece)
            behind = (start - distance) - (max(result) + len(piece) - 1)  # a needle may end with more than the answer
            most = int(np.ptp(rows.needles[row, 0])) if name in tasks.IN_FILES else 1  # an answer within its paragraph
            assert 0 <= behind <= (5 if name == "variable_tracking" else most)


@pytest.mark.parametrize("name", [name for name in tasks.SYNTHETIC if name not in tasks.IN_FILES])  # see test_qa.py
def test_chance_is_what_a_guess_gets(name):
    task = Mqar(4, 64) if name == "mqar" else made(name, needles=4, **SHORT)
    values = {value for row in asked_at(name, 300, None).references for value in row}
    assert 0 < task.chance() <= 1 / len(values) if task.chance() < 1 / 64 else 1 / 64 <= task.chance() <= 1 / 16
