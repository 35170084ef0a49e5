"""Lists of words: rows are read from their text alone; what stands in them most often is what they ask for."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from data.retrieval import Draw
from data.retrieval.fwe import ZETA, copies
from tests.data.retrieval.common import SENTENCEPIECE, decoded, made

CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["byte", "char", "file", *SENTENCEPIECE]),
        "form": st.sampled_from(["full", "short"]),
        "needles": st.integers(1, 5),
        "extra": st.one_of(st.integers(0, 5), st.integers(0, 900)),
        "depth": st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        "seed": st.integers(0, 2**63 - 1),
        "held_out": st.booleans(),
        "vary": st.booleans(),
    }
)


def words_of(text: str, case) -> list[str]:
    """The list's words, in their order, from a row's text before the question."""
    if case["form"] == "short":
        return re.findall("[a-z]{3}", text)
    return re.findall("[a-z]{5}-[a-z]{5}" if case["name"] == "cwe" else r"\b[a-z]{6}\b", text.partition("\n" if
                      case["name"] == "cwe" else ".")[2])  # fmt: skip


@pytest.mark.parametrize("name", ["cwe", "fwe"])
@given(case=CASES)
@hypothesis_settings(max_examples=40, deadline=None)
def test_the_answers_are_the_most_frequent_words(name, case):
    case["name"] = name
    task = made(name, case["kind"], form=case["form"], needles=case["needles"], letters=3)
    length = task.shortest() + case["extra"]
    rows = task.rows(Draw(case["seed"], held_out=case["held_out"]), 7, 2, length=length, depth=case["depth"],
                     vary=case["vary"])  # fmt: skip
    assert rows.tokens.shape == (2, length)
    for row, tokens in enumerate(rows.tokens):
        number = int(rows.pairs[row])
        assert number == case["needles"] or (case["vary"] and 1 <= number <= case["needles"])
        prompt = decoded(case["kind"], tokens[: rows.prompts[row]])
        said = prompt.rsplit("#" if case["form"] == "short" else "\nQuestion", 1)[0]
        words = words_of(said, case)
        counts = Counter(words)
        references = list(rows.references[row])
        assert len(set(references)) == number
        most = counts.most_common()
        least = min(counts[word] for word in references)
        assert all(counts[word] < least for word in counts if word not in references), "no other word is as frequent"
        if name == "cwe":
            assert references == sorted(references, key=words.index) and {counts[word] for word in references} == {6}
            if case["form"] == "full":
                assert [int(n) for n in re.findall(r" (\d+)\. [a-z]", said)] == list(range(1, len(words) + 1))
        else:
            assert references == [word for word, _ in most[:number]]
            assert len({counts[word] for word in references}) == number, "one right order"
        for (start, end), reference in zip(rows.spans[row].tolist(), references, strict=False):
            assert decoded(case["kind"], tokens[start:end]).strip() == reference
        check_distance(case, rows, row, words, references)


def check_distance(case, rows, row, words, references):
    """The nearest copy is where the row says, and a depth keeps all copies in the list's first part."""
    tokens = rows.tokens[row]
    for (start, end), place, distance in zip(rows.needles[row].tolist(), rows.spans[row].tolist(),
                                             rows.distances[row].tolist(), strict=True):  # fmt: skip
        if end:
            assert distance == place[0] - (end - 1)
            assert tokens[start:end].tolist() == tokens[place[0] : place[1]].tolist()
    if case["depth"] is None or case["name"] == "fwe":
        return
    copies_of = sum(words.count(word) for word in references)
    last = max(len(words) - words[::-1].index(word) for word in references)
    assert last <= copies_of + round(case["depth"] * (len(words) - copies_of))


def test_counts_are_rulers():
    """Where rows are long: 30 and 3 copies; the zeta law to a word."""
    task = made("cwe", form="short", letters=3, needles=3)
    text = decoded("byte", task.rows(Draw(0), 0, 1, length=5000).tokens[0]).rsplit("#", 1)[0]
    counts = sorted(Counter(re.findall("[a-z]{3}", text)).values(), reverse=True)
    assert counts[:3] == [30, 30, 30] and set(counts[3:-1]) == {3} and counts[-1] <= 3
    many = copies(10_000, 3, 60)
    assert many == [int(10_000 / ZETA / rank**2) for rank in range(2, 62)]
    task = made("fwe", needles=3)
    text = decoded("byte", task.rows(Draw(0), 0, 1, length=20_000).tokens[0])
    words = text.partition(".")[2].partition("\nQuestion")[0].split()
    counts = Counter(words)
    top = [number for word, number in counts.most_common(6) if word != "..."]
    assert top == pytest.approx([counts["..."] / rank**2 for rank in range(2, 7)], rel=0.05)


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_the_end_of_the_list_tells_nothing_at_depth_0(name):
    """The control: who counts the words of the last half alone never names one that is asked for."""
    task = made(name, form="short", letters=3, needles=3)
    length = 4 * task.shortest()
    rows = task.rows(Draw(5, held_out=True), 0, 20, length=length, depth=0.0)
    for row, tokens in enumerate(rows.tokens):
        near = decoded("byte", tokens[length // 2 : rows.prompts[row]])
        assert not any(word in near for word in rows.references[row])
    assert rows.distances.min() > length // 2
    whole = task.rows(Draw(5, held_out=True), 0, 20, length=length)  # shuffled, half of the list tells them all
    seen = [word in decoded("byte", tokens[length // 2 :][:-12]) for tokens, of in zip(whole.tokens, whole.references,
            strict=True) for word in of]  # fmt: skip
    assert np.mean(seen) > 0.6


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_the_seed_fixes_every_byte_whoever_draws(name):
    task, draw = made(name), Draw(2**40 + 3, 2)
    length = task.shortest() + 60
    whole = task.rows(draw, 10, 6, length=length, vary=True)
    part = made(name).rows(draw, 14, 2, length=length, vary=True)
    assert np.array_equal(whole.tokens[4:], part.tokens) and whole.references[4:] == part.references


@pytest.mark.parametrize("name", ["cwe", "fwe"])
def test_a_row_too_short_and_a_tokenizer_without_letters(name):
    from data import retrieval, tokenizers
    from tests.data.common import settings

    task = made(name)
    with pytest.raises(UserError, match=f"too short for {name}: this one needs {task.shortest()}"):
        task.rows(Draw(0), 0, 1, length=task.shortest() - 1)
    with pytest.raises(UserError, match=f"{name}: the tokenizer cannot encode"):
        retrieval.make(name, settings(), tokenizers.Characters("abc"), None)
