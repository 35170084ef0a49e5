"""Question answering: rows are read from their text alone, and looked up in the file by a reader of the test's own."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import ConfigError, UserError
from data import identity, retrieval, tokenizers
from data.retrieval import Draw
from sweeps.execution.data_check import missing
from tests.data.common import settings
from tests.data.retrieval.common import SENTENCEPIECE, SQUAD, decoded, made, tokenizer

TEXT = Path(SQUAD).read_text()
PARAGRAPHS = {one["context"]: one["qas"] for article in json.loads(TEXT)["data"] for one in article["paragraphs"]}
ANSWERED = {
    one["question"]: (text, Counter(answer["text"] for answer in one["answers"]).most_common(1)[0][0])
    for text, questions in PARAGRAPHS.items()
    for one in questions
    if one["answers"]
}
CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["byte", "char", "file", *SENTENCEPIECE]),
        "form": st.sampled_from(["full", "short"]),
        "extra": st.one_of(st.integers(0, 5), st.integers(0, 900)),
        "depth": st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        "seed": st.integers(0, 2**63 - 1),
        "held_out": st.booleans(),
    }
)


def read(prompt: str, form: str) -> tuple[str, list[str], str]:
    """Returns (what is left of the first document, the whole documents, the question) of a prompt's text."""
    said, _, question = prompt.rpartition("Question: ")
    assert question.endswith("\nAnswer:")
    if form == "full":
        instruction = "Answer the question based on the given documents. Only give me the answer"
        assert said.startswith(instruction) and said.count(instruction) == 2
        said = said.partition("given documents.\n\n")[2].rpartition(instruction)[0]
    head, *documents = re.split(r"(?<![^\n])Document:\n", said)
    return head, [one.rstrip("\n") for one in documents], question.removesuffix("\nAnswer:")


@given(case=CASES)
@hypothesis_settings(max_examples=60, deadline=None)
def test_one_document_of_the_row_answers_its_question(case):
    task = made("qa", case["kind"], form=case["form"])
    length = task.shortest() + case["extra"]
    rows = task.rows(Draw(case["seed"], held_out=case["held_out"]), 7, 2, length=length, depth=case["depth"])
    assert rows.tokens.shape == (2, length)
    for row, tokens in enumerate(rows.tokens):
        prompt = decoded(case["kind"], tokens[: rows.prompts[row]])
        head, documents, question = read(prompt, case["form"])
        text, answer = ANSWERED[question]
        assert rows.references[row] == (answer,)
        assert documents.count(text) == 1 and set(documents) <= set(PARAGRAPHS), "whole paragraphs of the file"
        assert any(f"Document:\n{one}\n\n".endswith(head) for one in PARAGRAPHS), "the first is cut at its beginning"
        others = [one for one in (head, *documents) if one != text]
        assert not any(re.search(rf"\b{re.escape(answer)}\b", one, re.IGNORECASE) for one in others)
        check_tokens(case, rows, row, text, answer)
        place = documents.index(text)
        if case["depth"] in (0.0, 1.0):
            assert place == (0 if case["depth"] == 0.0 else len(documents) - 1)


def check_tokens(case, rows, row, text, answer):
    """The answer's tokens are those in its paragraph, and distance and depth are the paragraph's."""
    tokens, ((start, end),), ((first, last),) = rows.tokens[row], rows.needles[row], rows.spans[row]
    assert decoded(case["kind"], tokens[first:last]).strip() == answer and last == len(tokens)
    golden = tokens[start:end].tolist()
    assert text in decoded(case["kind"], golden).replace("\n", " ").strip()
    own = tokens[first:last].tolist()
    assert any(golden[at : at + len(own)] == own for at in range(len(golden)))
    assert rows.distances[row, 0] == first - (end - 1)
    assert 0 <= rows.depths[row, 0] <= 1


def test_training_and_evaluation_share_no_paragraph():
    task = made("qa", form="short")
    seen = []
    for held_out in (False, True):
        rows = task.rows(Draw(3, held_out=held_out), 0, 60, length=task.shortest())
        text = "\n".join(decoded("byte", tokens) for tokens in rows.tokens)
        seen.append({paragraph for paragraph in PARAGRAPHS if paragraph in text})
    assert not seen[0] & seen[1] and len(seen[0]) > 30 and len(seen[1]) > 2


def test_other_paragraphs_come_again_only_when_all_were_there():
    task = made("qa", form="short")
    rows = task.rows(Draw(1, held_out=True), 0, 4, length=4000)
    for row, tokens in enumerate(rows.tokens):
        _, documents, question = read(decoded("byte", tokens[: rows.prompts[row]]), "short")
        counts = Counter(one for one in documents if one != ANSWERED[question][0])
        assert max(counts.values()) - min(counts.values()) <= 1 and min(counts.values()) > 1


def test_depth_moves_the_paragraph_and_nothing_else():
    task = made("qa", form="short")
    depths = np.linspace(0, 1, 5)
    rows = [task.rows(Draw(1), 5, 1, length=1500, depth=depth) for depth in depths]
    assert len({row.references for row in rows}) == 1
    assert np.abs(np.array([row.depths[0, 0] for row in rows]) - depths).max() < 0.06
    assert (np.diff([row.distances[0, 0] for row in rows]) < 0).all()
    assert rows[0].distances[0, 0] > 1200, "beyond a window of 1,200 tokens, which the local baseline reads"


def test_what_does_not_fit_the_training_length_is_asked_at_no_length():
    config = settings(data__length=119, data__retrieval__questions=SQUAD, data__retrieval__form="short")
    task = retrieval.make("qa", config, tokenizer("byte"), None)
    assert task.shortest() == 120
    for length in (120, 400):
        rows = task.rows(Draw(0), 0, 20, length=length)
        for row, tokens in enumerate(rows.tokens):
            _, _, question = read(decoded("byte", tokens[: rows.prompts[row]]), "short")
            text, answer = ANSWERED[question]
            assert len(f"Document:\n{text}\n\nQuestion: {question}\nAnswer: {answer}") <= 120
    with pytest.raises(UserError, match="too short for qa: this one needs 120"):
        task.rows(Draw(0), 0, 1, length=119)
    with pytest.raises(UserError, match="qa: of 512 questions drawn, none fits a row of 60 tokens"):
        retrieval.make("qa", settings(data__length=60, data__retrieval__questions=SQUAD), tokenizer("byte"), None)


def test_curriculum_stages_count_where_they_train_on_it():
    stages = ({"steps": 1, "length": 300}, {"steps": 1, "length": 20, "weights": {"qa": 0.0}})
    more = {"data__retrieval__questions": SQUAD, "data__weights__qa": 1.0, "data__length": 400}
    config = settings(data__curriculum=stages, data__retrieval__form="short", **more)
    assert retrieval.make("qa", config, tokenizer("byte"), None).shortest() == 301


def test_chance_is_what_a_constant_answer_gets_right():
    task = made("qa", form="short")
    rows = task.rows(Draw(0, held_out=True), 0, 400, length=task.shortest())
    counts = Counter(reference.casefold() for (reference,) in rows.references)
    assert counts.most_common(1)[0][1] / 400 == pytest.approx(task.chance(), abs=0.05)


def test_the_seed_fixes_every_byte_whoever_draws():
    draw = Draw(2**40 + 3, 2)
    whole = made("qa").rows(draw, 10, 6, length=700)
    part = made("qa").rows(draw, 14, 2, length=700)
    assert np.array_equal(whole.tokens[4:], part.tokens) and whole.references[4:] == part.references


def test_the_file_is_known_by_what_it_holds(tmp_path):
    there = tmp_path / "questions.json"
    there.write_text(TEXT)

    def of(path, **more):
        config = settings(data__retrieval__questions=str(path), data__length=400, **more)
        return identity.fingerprint(config, None, tokenizers.Bytes())["fingerprint"]

    asked = {"data__weights__qa": 1.0, "data__weights__text": 0.0}
    assert of(SQUAD, **asked) == of(there, **asked)
    before = of(there, **asked)
    there.write_text(TEXT.replace("Document", "Paragraph").replace("harbour", "tunnels"))
    assert of(there, **asked) != before
    other = {"data__weights__passkey": 1.0}
    assert of(SQUAD, **other) == of("", **other), "a file that no source reads is not part of the data"


def squad(**changes):
    """A file of one paragraph, with changes to its answer."""
    answer = {"text": "Orla", "answer_start": 10, **changes}
    asked = {"question": "Who built it?", "answers": [answer]}
    return {"data": [{"paragraphs": [{"context": "Built by: Orla.", "qas": [asked]}]}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ([], "not in SQuAD's format: data must be a list"),
        ({"data": [{}]}, r"data\[0\].paragraphs must be a list"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, r"data\[0\].paragraphs\[0\].context must be text"),
        (squad(text=3), r"data\[0\].paragraphs\[0\].qas\[0\].answers\[0\].text must be text"),
        (squad(answer_start="10"), r"answers\[0\].answer_start must be a whole number"),
        (squad(answer_start=True), r"answers\[0\].answer_start must be a whole number"),
        (squad(answer_start=9), r"answer_start = 9: the context has ' Orl' there, not 'Orla'"),
        (squad(answer_start=-4), "answer_start = -4: the context has 'Buil' there"),
        (squad(text=" "), r"answers\[0\].text is empty"),
        (squad(), r"of its 1 paragraphs, .* have no question that can be asked"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "questions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=message) as error:
        made("qa", questions=str(path))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_named_or_not_there(tmp_path):
    gone = str(tmp_path / "gone.json")
    for room, more in {"data": {"data__weights__qa": 1.0}, "eval": {"eval__retrieval__task": "qa"}}.items():
        with pytest.raises(ConfigError, match=rf"{room}.retrieval.questions: qa is made of a file, and none is set"):
            settings(**more)
        config = settings(**more, **{f"{room}__retrieval__questions": gone})
        assert missing(config) == [f"{room}.retrieval.questions = {gone!r}: there is no such file"]
    with pytest.raises(UserError, match=r"data.retrieval.questions = '.*gone.json': no such file"):
        made("qa", questions=gone)
    with pytest.raises(UserError, match="is a folder"):
        made("qa", questions=str(tmp_path))


def test_a_tokenizer_that_lacks_a_character_is_refused():
    config = settings(data__retrieval__questions=SQUAD, data__length=511)
    with pytest.raises(UserError, match="qa: the tokenizer cannot encode"):
        retrieval.make("qa", config, tokenizers.Characters("abc"), None)
