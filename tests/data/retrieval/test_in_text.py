"""Tasks in words: rows are read as a reader would, from their text alone, and must say what the task says."""

import functools
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from configs.rules import tasks
from data.retrieval import Draw
from data.retrieval.haystacks import NOISE, Encoder
from data.retrieval.niah import ADJECTIVES, NOUNS
from tests.data.retrieval.common import SENTENCEPIECE, TEXT, decoded, made, tokenizer

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KEY = {"full": "[a-z]{5}-[a-z]{5}", "short": "[a-z]{3}"}


def patterns(name: str, form: str) -> tuple[str, str]:
    """Regular expressions of a needle (key, value) and of the question."""
    if name == "passkey":
        return (
            (r" The (pass key) is (\d{5})\. Remember it\.", r" What is the pass key\? The pass key is")
            if form == "full"
            else ("#(key)=(\\d{5});", "#key=")
        )
    if name == "variable_tracking":
        if form == "full":
            value = r" VAR ([A-Z]{5}) = (?:VAR )?([A-Z]{5}|\d{5})\."
            return value, r"\nQuestion: Find all variables that are assigned the value (\d{5}) in the text above\..*:"
        return r"#([A-Z]{3})=([A-Z]{3}|\d{5});", r"#(\d{5}):"
    uuid_keys, uuid_values = name == "niah_multikey_3", name in ("niah_single_3", "niah_multikey_3")
    key = UUID if uuid_keys else KEY[form]
    value = UUID if uuid_values else r"\d{7}" if form == "full" else r"\d{5}"
    if form == "short":
        return f"#({key})=({value});", f"#((?:{key},?)+)="
    kind = "uuid" if uuid_values else "number"
    question = (
        rf"\nWhat (?:is|are all) the special magic {kind}s? for (.*?) mentioned in the provided text\? The special "
        rf"magic {kind}s? for .*? mentioned in the provided text (?:is|are)"
    )
    return f" One of the special magic {kind}s for ({key}) is: ({value})\\.", question


CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["byte", "char", "file", *SENTENCEPIECE]),
        "form": st.sampled_from(["full", "short"]),
        "haystack": st.sampled_from(["own", *tasks.HAYSTACKS]),
        "needles": st.integers(1, 5),
        "extra": st.one_of(st.integers(0, 5), st.integers(0, 900)),
        "depth": st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        "seed": st.integers(0, 2**63 - 1),
        "held_out": st.booleans(),
        "first": st.integers(0, 10**9),
        "vary": st.booleans(),
    }
)


def rows_of(case):
    """Draws two rows of a case; returns (rows, length)."""
    digits = 0 if case["form"] == "full" else 5
    shared = {"form": case["form"], "needles": case["needles"], "digits": digits, "letters": 3}
    task = made(case["name"], case["kind"], haystack=case["haystack"], **shared)
    length = task.shortest() + case["extra"]
    draw = Draw(case["seed"], held_out=case["held_out"])
    requested = {"depth": case["depth"], "vary": case["vary"]}
    return task.rows(draw, case["first"], 2, length=length, **requested), length


@pytest.mark.parametrize("name", tasks.IN_HAYSTACK)
@given(case=CASES)
@hypothesis_settings(max_examples=25, deadline=None)
def test_a_row_says_what_the_task_says(name, case):
    if name == "passkey" and case["haystack"] == "distractors":
        return
    case["name"] = name
    rows, length = rows_of(case)
    decode = functools.partial(decoded, case["kind"])
    needle, question = patterns(case["name"], case["form"])
    assert rows.tokens.shape == (2, length) and rows.tokens.dtype == np.int32
    for row, tokens in enumerate(rows.tokens):
        whole = decode(tokens)
        prompt, answered = decode(tokens[: rows.prompts[row]]), decode(tokens[rows.prompts[row] :])
        requested = re.search(f"({question})$", prompt, re.DOTALL)
        assert requested, prompt
        message = re.findall(needle, prompt)
        required = expected(case["name"], message, requested.groups()[-1])
        assert list(rows.references[row]) == required, whole
        assert re.split(r",? |,", answered.strip()) == required
        haystack = prompt[: requested.start()]
        for answer in required:
            once = haystack.count(answer)
            assert once == 1 + (case["name"] == "variable_tracking" and answer != required[-1])
        check_spans(case, rows, row, decode, needle)


def expected(name: str, message: list[tuple[str, str]], requested: str) -> list[str]:
    """What the row's needles answer to its question."""
    if name == "passkey":
        (key,) = message
        return [key[1]]
    if name == "variable_tracking":
        names, result = dict(message), []
        for variable in names:
            value = names[variable]
            while value in names:
                value = names[value]
            if value == requested:
                result.append(variable)
        assert all([variable for variable, _ in message].count(name) == 1 for name in result)
        return result
    keys = re.findall(r"[0-9a-z-]+", re.sub(r",? and ", " ", requested))
    by_key = {key: [value for other, value in message if other == key] for key in keys}
    assert all(by_key.values())
    if name == "niah_multivalue":
        assert len(keys) == 1
    else:
        assert all(len(values) == 1 for values in by_key.values()), "one needle for a key"
    return [value for key in keys for value in by_key[key]]


def check_spans(case, rows, row, decode, needle):
    """Needles are whole, apart, and where they should be; answers' tokens are their needles'."""
    tokens, count = rows.tokens[row], int((rows.needles[row, :, 1] > 0).sum())
    spans = sorted(map(tuple, rows.needles[row, :count].tolist()))
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    for start, end in spans:
        assert re.fullmatch(needle, decode(tokens[start:end])), "whole"
    introduction = "" if case["form"] == "short" else decode(tokens).split("\n")[0] + "\n"
    if case["name"] == "passkey":
        introduction = ""
    begin = len(Encoder(tokenizer(case["kind"]))(introduction))
    assert decode(tokens[:begin]) == introduction
    sizes = sum(end - start for start, end in spans)
    prompt = int(rows.prompts[row])
    question = re.search(
        f"({patterns(case['name'], case['form'])[1]})$", decode(tokens[: rows.prompts[row]]), re.DOTALL
    )
    stop = next(n for n in range(prompt - len(question[0]), prompt) if decode(tokens[n:prompt]) == question[0])
    room = stop - begin - sizes
    before = {}
    for start, _ in spans:
        before[start] = start - begin - sum(e - s for s, e in spans if e <= start)
    requested = []
    for answer, (start, end) in enumerate(rows.spans[row][: len(rows.references[row])].tolist()):
        piece = tokens[start:end].tolist()
        (home,) = [s for s, e in spans if holds(tokens[s:e].tolist(), piece, case["name"])]
        assert rows.depths[row, answer] == pytest.approx(before[home] / room if room else 0.0)
        requested.append(before[home])
    if case["depth"] is not None:
        if tasks.haystack(case["name"], case["haystack"]) == "distractors":
            size = max((e - s for s, e in spans), default=0)
            assert min(abs(place - case["depth"] * room) for place in requested) <= size + room % size
        else:
            assert round(case["depth"] * room) in requested, "exact to the token"
    assert rows.scored[row].tolist() == (np.arange(len(tokens)) >= rows.prompts[row]).tolist()


def holds(needle: list[int], piece: list[int], name: str) -> bool:
    """Whether a needle says the answer; in a chain, as the name that gets a value, which comes first."""
    places = [n for n in range(len(needle)) if needle[n : n + len(piece)] == piece]
    return bool(places) and (name != "variable_tracking" or places[0] < len(needle) / 2)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_tokenizers_that_put_a_space_before_every_text_put_none_between_pieces(kind):
    row = made("niah_multikey_1", kind, haystack="noise").rows(Draw(0), 0, 1, length=700, depth=0.5).tokens[0]
    text = decoded(kind, row)
    assert len(re.findall(r" for [a-z]{5}-[a-z]{5} is: \d{7}\.", text)) == 4
    assert re.search(r"What is the special magic number for [a-z]{5}-[a-z]{5} mentioned", text)
    assert re.search(r" is \d{7}$", text)


@pytest.mark.parametrize("name", tasks.IN_HAYSTACK)
def test_the_depth_grid_of_rulers_forty_points_is_exact(name):
    task, seen = made(name, haystack="noise"), []
    length = task.shortest() + 400
    for depth in np.linspace(0, 1, 40):
        rows = task.rows(Draw(1, held_out=True), 0, 1, length=length, depth=float(depth))
        room = 400  # of bytes; every needle and question is as long as the longest
        places = np.rint(rows.depths[0] * room)
        assert round(depth * room) in places
        seen.append(round(depth * room))
    assert len(set(seen)) == 40


@pytest.mark.parametrize("name", tasks.IN_HAYSTACK)
def test_the_seed_fixes_every_byte_whoever_draws(name):
    task = made(name)
    length, draw = task.shortest() + 60, Draw(2**40 + 3, 2)
    whole = task.rows(draw, 10, 6, length=length, vary=True)
    parts = [made(name).rows(draw, first, count, length=length, vary=True) for first, count in ((14, 2), (10, 4))]
    assert np.array_equal(whole.tokens, np.concatenate([parts[1].tokens, parts[0].tokens]))
    assert whole.references == parts[1].references + parts[0].references
    others = [Draw(2**40 + 4, 2), Draw(2**40 + 3, 1), Draw(2**40 + 3, 2, True)]
    drawn = [whole, *(task.rows(other, 10, 6, length=length, vary=True) for other in others)]
    assert len({rows.tokens.tobytes() for rows in drawn}) == 4


def test_the_same_needles_at_every_length_and_depth():
    task, draw = made("niah_single_1"), Draw(0, held_out=True)
    messages = {task.rows(draw, 0, 8, length=n, depth=d).references for n, d in ((500, 0.0), (900, 0.5), (3000, 1.0))}
    assert len(messages) == 1


def test_the_number_of_needles_is_uniform_in_training():
    rows = made("niah_multivalue", form="short", digits=5).rows(Draw(0), 0, 1200, length=100, vary=True)
    counts = np.bincount(rows.pairs, minlength=5)[1:]
    assert abs(counts - 300).max() < 60 and ((rows.spans[:, :, 1] > 0).sum(axis=1) == rows.pairs).all()


def test_haystacks_are_what_they_say():
    noise = made("niah_single_2", haystack="noise").rows(Draw(0), 0, 1, length=900, depth=1.0)
    text = tokenizer("byte").decode(noise.tokens[0]).split("\n")[1]
    before = text[: text.index(" One of")]
    assert before and (NOISE * 20).endswith(before)
    real = made("niah_single_2").rows(Draw(0), 0, 4, length=900, depth=1.0)
    stretches = [tokenizer("byte").decode(row).split("\n", 1)[1] for row in real.tokens]
    stretches = [stretch[: stretch.index(" One of")] for stretch in stretches]
    assert len(set(stretches)) == 4 and all(stretch in TEXT + TEXT for stretch in stretches)
    full = made("niah_multikey_2").rows(Draw(0), 0, 1, length=2000, depth=0.5)
    result = re.findall(
        r" One of the special magic numbers for (\S+) is: (\d+)\.", tokenizer("byte").decode(full.tokens[0])
    )
    assert len(result) >= 25 and len(dict(result)) == len(result)


def test_distractors_never_say_what_is_asked():
    """Among so few keys that a haystack of needles would hold the asked one again and again."""
    task = made("niah_multikey_2", form="short", letters=1, digits=2)
    for tokens, (answer,) in zip(
        *(lambda r: (r.tokens, r.references))(task.rows(Draw(0), 0, 40, length=300)), strict=True
    ):
        text = tokenizer("byte").decode(tokens)
        key = re.search(r"#([a-z])=\d\d$", text)[1]
        assert text.count(f"#{key}=") == 2 and re.findall(r"=(\d\d);", text).count(answer) == 1
    chain = made("variable_tracking", form="short", letters=1, digits=2, haystack="distractors", needles=2)
    for tokens in chain.rows(Draw(0), 0, 40, length=300).tokens:
        names = re.findall(r"#([A-Z])=", tokenizer("byte").decode(tokens))
        requested = re.search(r":(.),(.),(.)$", tokenizer("byte").decode(tokens))
        assert all(names.count(name) == 1 for name in requested.groups())


def test_keys_of_words_are_all_different_and_equally_long():
    adjectives, nouns = ADJECTIVES.split(), NOUNS.split()
    assert {len(word) for word in adjectives + nouns} == {5}
    assert len(set(adjectives)) == len(adjectives) and len(set(nouns)) == len(nouns)
    assert len(adjectives) * len(nouns) > 50_000


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("passkey", {"haystack": "distractors"}, "passkey: does not support a haystack of distractors"),
        ("niah_multikeys_1", {}, "not a retrieval task; did you mean niah_multikey_1"),
        ("niah_multikey_1", {"form": "short", "letters": 1, "needles": 30}, "raise data.retrieval.letters"),
    ],
)
def test_impossible_settings(name, more, message):
    with pytest.raises(UserError, match=message):
        made(name, **more).rows(Draw(0), 0, 1, length=4000)


@pytest.mark.parametrize("name", tasks.IN_HAYSTACK)
def test_a_row_too_short_says_so(name):
    task = made(name)
    task.rows(Draw(0), 0, 3, length=task.shortest())
    with pytest.raises(UserError, match=f"too short for {name}: this one needs {task.shortest()}"):
        task.rows(Draw(0), 0, 1, length=task.shortest() - 1)


def test_a_tokenizer_that_cannot_write_a_needle():
    from data import retrieval, tokenizers
    from tests.data.common import settings

    letters = tokenizers.Characters(NOISE + "abcdefghijklmnopqrstuvwxyz?\nTWR")
    with pytest.raises(UserError, match=r"passkey: the tokenizer cannot encode '\d+': the character"):
        retrieval.make("passkey", settings(), letters, None)
    with pytest.raises(UserError, match="its haystack is the run's text, but the run reads no text"):
        retrieval.make("niah_single_2", settings(), tokenizers.Bytes(), None)
    with pytest.raises(UserError, match="the run has no tokenizer"):
        retrieval.make("niah_single_2", settings(), None, None)


def test_a_tokenizer_that_swallows_digits():
    import tokenizers as library

    from data import retrieval, tokenizers
    from tests.data.common import settings
    from tests.data.test_tokenizers import trained

    deaf = tokenizers.FromFile(trained(normalizer=library.normalizers.Replace(library.Regex("[0-9]"), "x")))
    with pytest.raises(UserError, match=r"passkey: the tokenizer decodes '\d+' to 'x+'"):
        retrieval.make("passkey", settings(), deaf, None)


def test_text_that_holds_every_short_needle_already():
    from data import retrieval, tokenizers
    from tests.data.common import settings
    from tests.data.retrieval.common import Stream

    everything = "".join(f"#{chr(97 + n)}=1;" for n in range(26)) * 3
    config = settings(data__retrieval__form="short", data__retrieval__letters=1, data__retrieval__digits=2)
    task = retrieval.make(
        "niah_single_2", config, tokenizers.Bytes(), Stream(np.frombuffer(everything.encode(), np.uint8))
    )
    with pytest.raises(UserError, match="gave no row whose text does not already contain a needle's words"):
        task.rows(Draw(0), 0, 1, length=400)


def test_a_text_shorter_than_the_haystack_goes_round():
    from data import retrieval, tokenizers
    from tests.data.common import settings
    from tests.data.retrieval.common import Stream

    text = "a short text, of fifty bytes or so; it begins anew. "
    stream = Stream(np.frombuffer(text.encode(), np.uint8))
    task = retrieval.make("niah_single_2", settings(data__retrieval__form="short"), tokenizers.Bytes(), stream)
    for extra in (0, len(text) - 1, len(text), 300):
        rows = task.rows(Draw(0), 0, 60, length=task.shortest() + extra, depth=1.0)
        for row in rows.tokens:
            hay = tokenizers.Bytes().decode(row).split("#")[0]
            assert len(hay) == extra and hay in text * 9
