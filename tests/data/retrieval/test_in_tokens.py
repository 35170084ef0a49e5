"""Tasks of bare tokens: rows are read from their tokens alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import stats

from configs.errors import UserError
from configs.rules import tasks
from data.retrieval import Draw
from data.retrieval.compositional_mqar import CompositionalMqar
from data.retrieval.forgetting_mqar import ForgettingMqar
from data.retrieval.induction import Induction
from data.retrieval.mqar_gaps import MqarGaps
from data.retrieval.selective_copy import SelectiveCopy

SETTINGS = st.fixed_dictionaries(
    {
        "needles": st.integers(1, 6),
        "extra": st.integers(0, 60),
        "vocab_size": st.sampled_from([16, 64, 300]),
        "seed": st.integers(0, 2**63 - 1),
        "held_out": st.booleans(),
        "first": st.integers(0, 10**9),
        "vary": st.booleans(),
    }
)
COUNT = 5


def rows_of(task, setting, squares=False, **more):
    length = task.shortest() + setting["extra"]
    draw = Draw(setting["seed"], held_out=setting["held_out"])
    rows = task.rows(draw, setting["first"], COUNT, length=length, vary=setting["vary"], **more)
    assert rows.tokens.shape == (COUNT, length) and rows.tokens.dtype == np.int32
    assert rows.tokens.min() >= 0 and rows.tokens.max() < task.vocab_size
    allowed = range(1, task.needles + 1) if setting["vary"] else [task.needles]
    allowed = [number**2 for number in range(1, 7) if number**2 in allowed] if squares else allowed
    assert all(number in allowed for number in rows.pairs)
    inside = np.zeros(rows.tokens.shape, bool)
    for row, spans in enumerate(rows.spans.tolist()):
        for (start, end), reference in zip(spans, rows.references[row], strict=False):
            assert " ".join(map(str, rows.tokens[row, start:end])) == reference
            inside[row, start:end] = True
        assert max(end for _, end in spans) == rows.ends[row]
    assert np.array_equal(inside, rows.scored), "only answers are scored"
    return rows


@given(SETTINGS, st.booleans())
@hypothesis_settings(max_examples=80, deadline=None)
def test_mqar_with_gaps(setting, random_filler):
    vocab = setting["vocab_size"]
    rows = rows_of(MqarGaps(setting["needles"], vocab, 0.01, random_filler), setting)
    for row, tokens in enumerate(rows.tokens.tolist()):
        m = int(rows.pairs[row])
        pairs = dict(zip(tokens[: 2 * m : 2], tokens[1 : 2 * m : 2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == m
        assert all(0 < key < vocab // 2 <= value for key, value in pairs.items())
        for index, (key, value) in enumerate(pairs.items()):
            (place,) = [n for n in range(2 * m, len(tokens)) if tokens[n] == key]
            assert place % 2 == 0 and tokens[place + 1] == value, "asked once, in a place of two tokens"
            assert tokens.count(value) == 2
            assert rows.spans[row, index].tolist() == [place + 1, place + 2]
            assert rows.needles[row, index].tolist() == [2 * index, 2 * index + 2]
            assert rows.depths[row, index] == index / m
        rest = len(tokens) - 4 * m
        filler = [t for t in tokens if t not in pairs and t not in pairs.values()]
        assert len(filler) == rest and (random_filler or not any(filler))


@given(SETTINGS, st.booleans())
@hypothesis_settings(max_examples=40, deadline=None)
def test_forgetting_mqar_asks_for_the_last_value(setting, random_filler):
    setting["vocab_size"] = max(setting["vocab_size"], 24)
    rows = rows_of(ForgettingMqar(setting["needles"], setting["vocab_size"], 0.01, random_filler), setting)
    for row, tokens in enumerate(rows.tokens.tolist()):
        m = int(rows.pairs[row])
        told = 2 * m + 2 * -(-m // 2)
        keys, values = tokens[:told:2], tokens[1:told:2]
        assert len(set(keys[:m])) == m and len(set(keys[m:])) == -(-m // 2) and set(keys[m:]) <= set(keys[:m])
        assert len(set(values)) == len(values), "an old value is no other key's"
        last = dict(zip(keys, values, strict=True))  # what comes later takes the place of what was there
        for index, key in enumerate(keys[:m]):
            (place,) = [n for n in range(told, len(tokens)) if tokens[n] == key]
            assert tokens[place + 1] == last[key] and rows.spans[row, index].tolist() == [place + 1, place + 2]
            where = len(keys) - 1 - keys[::-1].index(key)
            assert rows.needles[row, index].tolist() == [2 * where, 2 * where + 2]
            assert rows.distances[row, index] == place + 1 - (2 * where + 1)


@given(SETTINGS, st.booleans())
@hypothesis_settings(max_examples=40, deadline=None)
def test_compositional_mqar_needs_both_keys(setting, random_filler):
    setting["needles"] = setting["needles"] % 3 + 1
    task = CompositionalMqar(setting["needles"] ** 2, max(setting["vocab_size"], 30), 0.01, random_filler)
    rows = rows_of(task, setting | {"vocab_size": task.vocab_size}, squares=True)
    third = task.vocab_size // 3
    for row, tokens in enumerate(rows.tokens.tolist()):
        m = int(rows.pairs[row])
        pairs = {(tokens[3 * n], tokens[3 * n + 1]): tokens[3 * n + 2] for n in range(m)}
        ones, twos = {one for one, _ in pairs}, {two for _, two in pairs}
        assert len(pairs) == len(set(pairs.values())) == len(ones) * len(twos) == m and len(ones) == len(twos)
        assert all(0 < one < third <= two < 2 * third <= value for (one, two), value in pairs.items())
        for index, ((one, two), value) in enumerate(pairs.items()):
            (place,) = [n for n in range(3 * m, len(tokens) - 1) if tokens[n : n + 2] == [one, two]]
            assert place % 3 == 0 and tokens[place + 2] == value and tokens.count(value) == 2
            assert rows.spans[row, index].tolist() == [place + 2, place + 3]
            assert rows.distances[row, index] == place + 2 - (3 * index + 2)


def test_compositional_pairs_are_a_square():
    with pytest.raises(UserError, match="5 pairs are not a square"):
        CompositionalMqar(5, 64).rows(Draw(0), 0, 1, length=64)


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_gaps_follow_the_power_law(power):
    """The first pair's place has p ~ g^(a - 1); the second's is drawn from what is left, by numpy's own choice."""
    places, count = 12, 6000
    rows = MqarGaps(2, 64, power).rows(Draw(3), 0, count, length=4 + 2 * places)
    gaps = (rows.spans[:, :, 0] - 1 - 4) // 2
    weights = np.arange(1, places + 1) ** (power - 1)
    expected = weights / weights.sum()
    assert stats.chisquare(np.bincount(gaps[:, 0], minlength=places), expected * count).pvalue > 1e-3
    second = sum(expected[first] * np.where(np.arange(places) == first, 0, expected) / (1 - expected[first])
                 for first in range(places))  # fmt: skip
    assert stats.chisquare(np.bincount(gaps[:, 1], minlength=places), second * count).pvalue > 1e-3
    assert (gaps[:, 0] != gaps[:, 1]).all()


@given(SETTINGS, st.one_of(st.none(), st.floats(0, 1)), st.sampled_from(["induction_repeat", "induction_complete"]))
@hypothesis_settings(max_examples=80, deadline=None)
def test_induction(setting, depth, name):
    needles = 1 if name == "induction_complete" else setting["needles"]
    rows = rows_of(Induction(name, needles, setting["vocab_size"]), setting, depth=depth)
    for row, tokens in enumerate(rows.tokens.tolist()):
        m = int(rows.pairs[row])
        segment = tokens[-m - 1 :]
        assert len(set(segment)) == m + 1 and all(tokens.count(token) == 2 for token in segment)
        start = tokens.index(segment[0])
        assert tokens[start : start + m + 1] == segment, "whole"
        assert rows.needles[row].tolist() == [[start, start + m + 1]]
        room = len(tokens) - 2 * (m + 1)
        assert rows.depths[row, 0] == pytest.approx(start / room if room else 0.0)
        assert depth is None or start == round(depth * room)


def test_induction_without_filler_is_a_repeated_random_sequence():
    rows = Induction("induction_repeat", 7, 64).rows(Draw(0), 0, 50, length=16)
    assert np.array_equal(rows.tokens[:, :8], rows.tokens[:, 8:])


@given(SETTINGS)
@hypothesis_settings(max_examples=80, deadline=None)
def test_selective_copy(setting):
    rows = rows_of(SelectiveCopy(setting["needles"], setting["vocab_size"]), setting)
    for row, tokens in enumerate(rows.tokens.tolist()):
        m = int(rows.pairs[row])
        assert tokens.count(1) == 1 and tokens[-m - 1] == 1, "one mark, before the answer"
        messages = [(place, token) for place, token in enumerate(tokens[: -m - 1]) if token]
        assert [token for _, token in messages] == tokens[-m:]
        assert rows.needles[row, :m].tolist() == [[place, place + 1] for place, _ in messages]
        assert rows.depths[row, :m] == pytest.approx([place / max(len(tokens) - m - 2, 1) for place, _ in messages])


def test_places_of_selective_copy_are_anywhere():
    rows = SelectiveCopy(3, 16).rows(Draw(1), 0, 4000, length=4 + 12)
    counts = np.bincount(rows.needles[:, :, 0].ravel(), minlength=12)
    assert len(counts) == 12 and stats.chisquare(counts).pvalue > 1e-3


ALL = {
    "mqar_gaps": MqarGaps(4, 64, random_filler=True),
    "induction_repeat": Induction("induction_repeat", 4, 64),
    "induction_complete": Induction("induction_complete", 1, 64),
    "selective_copy": SelectiveCopy(4, 64),
    "forgetting_mqar": ForgettingMqar(4, 64, random_filler=True),
    "compositional_mqar": CompositionalMqar(4, 64, random_filler=True),
}


def test_every_task_of_tokens_is_here():
    assert tuple(ALL) == tasks.IN_TOKENS


@pytest.mark.parametrize("name", ALL)
def test_the_seed_fixes_every_byte_whoever_draws(name):
    draw = Draw(2**40 + 3, 2)
    whole = ALL[name].rows(draw, 10, 60, length=40, vary=True)
    parts = [ALL[name].rows(draw, first, count, length=40, vary=True) for first, count in ((10, 1), (11, 40), (51, 19))]
    assert np.array_equal(whole.tokens, np.concatenate([part.tokens for part in parts]))
    others = [Draw(2**40 + 4, 2), Draw(2**40 + 3, 1), Draw(2**40 + 3, 2, True)]
    drawn = [whole, *(ALL[name].rows(other, 10, 60, length=40, vary=True) for other in others)]
    assert len({rows.tokens.tobytes() for rows in drawn}) == 4


@pytest.mark.parametrize("name", ALL)
def test_a_row_too_short_says_so(name):
    short = ALL[name].shortest()
    ALL[name].rows(Draw(0), 0, 3, length=short)
    with pytest.raises(UserError, match=f"too short for {name}"):
        ALL[name].rows(Draw(0), 0, 3, length=short - 1)


@pytest.mark.parametrize("name", ALL)
def test_what_config_says_a_row_needs_is_what_it_needs(name):
    assert tasks.RETRIEVAL[name].tokens(4) == ALL[name].shortest()
