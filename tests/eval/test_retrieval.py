"""Retrieval: what counts as an answer, and what an oracle and a guesser get."""

import numpy as np
import pytest

from configs.rules import tasks
from data.retrieval import Draw, Rows
from data.retrieval.squad import holds
from eval.progress import Quiet
from eval.quality import retrieval, scoring
from tests.data.retrieval.common import SQUAD
from training.run_directory.run import open_data


def evaluated(run) -> dict:
    return retrieval.evaluate(run, Quiet())


def recalled(prompts: np.ndarray, pairs: int) -> np.ndarray:
    """The value that stands after the last key in each prompt's pairs."""
    keys, values = prompts[:, 0 : 2 * pairs : 2], prompts[:, 1 : 2 * pairs : 2]
    return np.take_along_axis(values, (keys == prompts[:, -1:]).argmax(1)[:, None], 1)


@pytest.fixture
def oracle(monkeypatch):
    """A model that knows: it reads the answer off the row."""
    monkeypatch.setattr(
        scoring, "score", lambda model, params, batch: (np.zeros(batch["targets"].shape), batch["targets"])
    )
    monkeypatch.setattr(scoring, "answer", lambda model, params, prompts, max_new, **_: recalled(prompts, 4))


@pytest.fixture
def guesser(monkeypatch):
    """A model that guesses among the values of the vocabulary."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        scoring,
        "score",
        lambda model, params, batch: (np.ones(batch["targets"].shape), rng.integers(32, 64, batch["targets"].shape)),
    )
    monkeypatch.setattr(
        scoring, "answer", lambda model, params, prompts, max_new, **_: rng.integers(32, 64, (len(prompts), max_new))
    )


def test_an_oracle_is_always_right(recall_run, oracle):
    result = evaluated(recall_run(eval__multiples=(1, 2, 4), eval__scalings=("yarn",)))
    assert result["task"] == "mqar" and result["accuracy"] == 1.0
    assert [(e["scaling"], e["length"], e["accuracy"]) for e in result["by_length"]] == [
        (scaling, length, 1.0) for scaling in ("trained", "yarn") for length in (15, 30, 60)
    ]
    for cell in result["cells"]:
        assert cell["accuracy"] == 1.0 and cell["pairs"] == 4 and cell["interval"][1] == 1.0
    assert all(entry["exact_match"]["accuracy"] == 1.0 for entry in result["by_length"])


def test_a_guesser_gets_what_chance_gives(recall_run, guesser):
    result = evaluated(recall_run(eval__retrieval__examples=400))
    for entry in result["by_length"]:
        for counts in (entry, entry["exact_match"]):
            deviation = (counts["examples"] * (1 / 32) * (31 / 32)) ** 0.5
            assert abs(counts["correct"] - counts["examples"] / 32) < 4 * deviation


def test_counts_add_up(recall_run, guesser):
    result = evaluated(recall_run(eval__retrieval__examples=10, eval__batch_size=4))
    first, second = result["by_length"]
    assert first["examples"] == 4 * 10  # each pair of each row once
    assert second["examples"] == 2 * 10 and second["near"] is None  # half of them, all from beyond the training length
    for entry in (first, second):
        here = [cell for cell in result["cells"] if cell["length"] == entry["length"]]
        assert sum(cell["examples"] for cell in here) == entry["examples"]
        assert sum(cell["correct"] for cell in here) == entry["correct"]
        assert sum(cell["exact_match"]["examples"] for cell in here) == entry["exact_match"]["examples"] == 10
    assert [cell["depth"] for cell in result["cells"][:4]] == pytest.approx([0.1, 0.3, 0.5, 0.7])


def test_records_and_effective_length_are_those_of_the_counts(recall_run, oracle):
    run = recall_run(eval__retrieval__control=False)
    result = evaluated(run)
    for entry in result["by_length"]:
        here = [r for r in result["records"] if r["length"] == entry["length"] and r["scaling"] == entry["scaling"]]
        messages = [r for r in here if r["answer"] == "teacher_forced"]
        here = [r for r in here if r["answer"] != "control"]
        assert len(messages) == entry["examples"] and sum(r["correct"] for r in messages) == entry["correct"]
        assert len({r["row"] for r in messages}) == entry["rows"]["examples"] == run.config.eval.retrieval.examples
        assert len(here) - len(messages) == entry["exact_match"]["examples"]
    longest = max(entry["length"] for entry in result["by_length"])
    assert result["effective_length"]["accuracy"]["trained"] == {"length": longest, "bounded": False}


def test_the_generated_answer_is_the_teacher_forced_one(recall_run):
    # One token, and the prompt is the row itself: the cache must not change what the model says.
    run = recall_run(eval__multiples=(2,), eval__scalings=("linear",), eval__retrieval__examples=8)
    rows = retrieval.far(run, retrieval.make(run, "mqar")).rows(Draw(0, held_out=True), 0, 8, length=31)
    last = int(rows.prompts[0])
    for variant in retrieval._lengths(run.config)[1:]:
        if variant.length == 30:
            _, likeliest = scoring.score(variant.model, run.params, rows.batch())
            answers = scoring.answer(variant.model, run.params, rows.tokens[:, :last], max_new=1)
            np.testing.assert_array_equal(answers[:, 0], likeliest[:, last - 1])


def test_a_real_model_from_end_to_end(recall_run):
    result = evaluated(recall_run(eval__retrieval__examples=6, eval__multiples=(2,), eval__scalings=("linear",)))
    # The training length was not asked for, but `accuracy` is about it.
    assert [entry["multiple"] for entry in result["by_length"]] == [1, 2, 2]
    assert result["accuracy"] == result["by_length"][0]["accuracy"] is not None
    assert all(entry["loss"] > 0 for entry in result["by_length"])


def test_without_generation(recall_run, oracle):
    result = evaluated(recall_run(eval__retrieval__generate=False))
    assert all(entry["exact_match"] is None for entry in result["by_length"] + result["cells"])


def test_what_cannot_be_asked_says_why(make, recall_run, oracle):
    run = make(data__length=64, eval__retrieval__task="passkey", eval__retrieval__generate=False)
    result = evaluated(run)
    needed = retrieval.make(run, "passkey").shortest() - 1
    assert result["accuracy"] is None and result["cells"][0]["length"] == 128
    assert result["by_length"][0]["reason"] == f"needle and question take {needed} tokens" and needed > 64
    learned = evaluated(recall_run(model__position__kind="learned", eval__multiples=(1, 2)))["by_length"]
    assert learned[0]["examples"] > 0 and learned[1]["reason"] == "the learned table has 15 positions"
    assert (
        evaluated(recall_run(eval__retrieval__task="passkey"))["by_length"][0]["reason"]
        == "passkey: the run has no tokenizer"
    )
    few = evaluated(make(data__tokenizer="char", eval__retrieval__task="mqar"))["by_length"][0]["reason"]
    assert "mqar needs 64" in few
    letters = evaluated(make(data__tokenizer="char", eval__retrieval__task="passkey"))["by_length"][0]["reason"]
    assert "character" in letters


@pytest.fixture
def reader(monkeypatch):
    """A model that finds a passkey in the bytes of its prompt, teacher-forced and generated."""

    def key_of(tokens: np.ndarray) -> list[int]:
        text = bytes(tokens.tolist()).decode()
        return list(text.split("The pass key is ")[1][:5].encode())

    def score(model, params, batch):
        likeliest = np.zeros_like(batch["targets"])
        likeliest[:, -6:] = [[32, *key_of(row)] for row in batch["tokens"]]
        return np.full(batch["targets"].shape, 0.5), likeliest

    def answer(model, params, prompts, max_new, mask_BT=None):
        assert mask_BT is None and max_new == 6
        return np.array([[32, *key_of(row)] for row in prompts])

    monkeypatch.setattr(scoring, "score", score)
    monkeypatch.setattr(scoring, "answer", answer)


def test_passkeys_that_are_read_are_right_at_every_depth(make, reader):
    result = evaluated(make(data__length=150, eval__retrieval__depths=3, eval__batch_size=3))
    assert result["task"] == "passkey" and result["accuracy"] == 1.0
    assert [(cell["length"], cell["depth"], cell["examples"]) for cell in result["cells"]] == [
        (length, depth, 4) for length in (150, 300) for depth in (0.0, 0.5, 1.0)
    ]
    assert all(entry["exact_match"]["accuracy"] == 1.0 and entry["loss"] == 0.5 for entry in result["by_length"])


def test_one_wrong_digit_is_wrong(make, reader, monkeypatch):
    original = scoring.score, scoring.answer

    def score(model, params, batch):
        losses, likeliest = original[0](model, params, batch)
        likeliest[0, -3] = 0
        return losses, likeliest

    def answer(*args, **kwargs):
        result = original[1](*args, **kwargs)
        result[0, -1] = 0
        return result

    monkeypatch.setattr(scoring, "score", score)
    monkeypatch.setattr(scoring, "answer", answer)
    entry = evaluated(make(data__length=150, eval__multiples=(1,), eval__retrieval__depths=1))["by_length"][0]
    assert entry["correct"] == 3 and entry["exact_match"]["correct"] == 3 and entry["examples"] == 4


def test_answers_of_several_lengths_share_one_batch(make, monkeypatch):
    # Rows whose answers take 2 and 3 tokens: the prompts end where the answers begin, padded on the left.
    tokens = np.array([[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]], np.int32)
    spans = np.array([[[4, 6], [0, 0]], [[3, 4], [5, 6]]])
    scored, needles = np.zeros((2, 6), bool), np.zeros((2, 2, 2), np.int32)
    prompts, ends = np.array([4, 3]), np.array([6, 6])
    rows = Rows(
        tokens,
        spans,
        np.zeros((2, 2)),
        needles,
        scored,
        prompts,
        ends,
        np.ones(2),
        (("a",), ("b", "c")),
        np.zeros((2, 2)),
    )
    seen = {}

    def answer(model, params, prompts, max_new, mask_BT=None):
        seen.update(prompts=prompts, mask=mask_BT)
        return np.array([[5, 6, 99], [14, 99, 0]])

    monkeypatch.setattr(scoring, "answer", answer)
    run = make(data__length=150)
    result, _, said = retrieval._generated(run, retrieval._lengths(run.config)[0], rows)
    assert said.tolist() == ["\x05\x06", "\x0ec\x00"]  # as many tokens as each row's own answers have
    assert result[0, 0] and result[1].tolist() == [True, False]
    assert seen["mask"].tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert seen["prompts"][0, 1:].tolist() == [1, 2, 3, 4] and seen["prompts"][1, 2:].tolist() == [11, 12, 13]


@pytest.fixture
def knower(monkeypatch):
    """A model that knows every row: what it is asked is right, whatever the task."""

    def answer(model, params, prompts, max_new, mask_BT=None):
        return np.array(
            [known[tuple(row[row >= 0])][:max_new] for row in np.where(mask_of(prompts, mask_BT), prompts, -1)]
        )

    def mask_of(prompts, mask_BT):
        return np.ones(prompts.shape, bool) if mask_BT is None else mask_BT > 0

    known: dict = {}
    original = retrieval._generated

    def generated(run, variant, rows):
        for tokens, prompt in zip(rows.tokens, rows.prompts, strict=True):
            known[tuple(tokens[:prompt])] = np.pad(tokens[prompt:], (0, 200))
        return original(run, variant, rows)

    monkeypatch.setattr(retrieval, "_generated", generated)
    monkeypatch.setattr(scoring, "answer", answer)
    monkeypatch.setattr(scoring, "score", lambda m, p, batch: (np.ones(batch["targets"].shape), batch["targets"]))


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_is_asked_by_its_name(make, knower, name):
    setting = {"data__length": 255, "data__retrieval__form": "short", "eval__retrieval__depths": 4}
    setting |= {"eval__retrieval__questions": SQUAD} if name == "qa" else {}
    result = evaluated(make(**setting, eval__retrieval__task=name, eval__retrieval__examples=3, eval__batch_size=2))
    assert result["task"] == name and result["accuracy"] == 1.0
    assert ("questions" in result) == (name == "qa")
    answers = {
        "niah_multivalue": 4,
        "niah_multiquery": 4,
        "variable_tracking": 5,
        "selective_copy": 4,
    }
    pairs = name in tasks.FILLED
    answers |= dict.fromkeys((*tasks.FILLED, "cwe", "fwe"), 4)
    bare = pairs or name == "selective_copy"  # a row asks at all depths
    for entry in result["by_length"]:
        # Where a needle's neighbours are long, four depths are fewer places, and the same row counts once.
        few = name in ("niah_multikey_3", "cwe", "fwe", "qa")  # of a list, the last copy of each word
        assert entry["examples"] == entry["correct"]
        near = entry["near"]["examples"] if entry["near"] else 0  # beyond the training length these do not count
        assert near == 0 or entry["length"] == 510
        asked_of_a_row = 2 if pairs and entry["length"] == 510 else answers.get(name, 1)
        assert entry["examples"] + near == asked_of_a_row * 3 * (1 if bare else 4) or few
        assert entry["answers_found"]["accuracy"] == 1.0
        requested = 3 if pairs else entry["examples"]  # the last question of each row
        assert entry["exact_match"]["correct"] == entry["exact_match"]["examples"] == requested
        here = [cell for cell in result["cells"] if cell["length"] == entry["length"]]
        assert sum(cell["examples"] for cell in here) == entry["examples"] + near
        assert len(here) == 4 or bare or few
    assert {cell["pairs"] for cell in result["cells"]} == {1 if answers.get(name, 1) == 1 and name != "niah_multikey_1"
                                                          and name != "induction_repeat" else 4}  # fmt: skip


@pytest.mark.parametrize("name", ["passkey", "mqar_gaps"])
def test_one_answer_of_many_is_wrong(make, knower, name, monkeypatch):
    def score(model, params, batch):
        likeliest = batch["targets"].copy()
        row, column = np.argwhere(batch["weights"] > 0)[0]
        likeliest[row, column] += 1
        return np.ones(likeliest.shape), likeliest

    monkeypatch.setattr(scoring, "score", score)
    setting = {"data__length": 127, "eval__multiples": (1,), "eval__retrieval__depths": 1}
    (entry,) = evaluated(make(**setting, eval__retrieval__task=name))["by_length"]
    assert entry["correct"] == entry["examples"] - 1 and entry["exact_match"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"eval__retrieval__task": "niah_multikey_3", "data__length": 64}, "needle and question take"),
        ({"eval__retrieval__task": "mqar_gaps", "data__mqar__vocab_size": 512}, "mqar_gaps needs 512"),
        (
            {"eval__retrieval__task": "passkey", "eval__retrieval__haystack": "distractors"},
            "passkey: does not support a haystack of distractors",
        ),
    ],
)
def test_a_task_that_cannot_be_asked_says_why(make, setting, reason):
    result = evaluated(make(**setting, eval__retrieval__generate=False, eval__multiples=(1,)))
    assert result["accuracy"] is None and reason in result["by_length"][0]["reason"]


def test_haystacks_of_text_are_cut_from_the_validation_split(make):
    run = make(data__length=64)
    task = retrieval.make(run, "niah_single_2")
    text = "".join(open_data(run.config).validation)
    rows = task.rows(Draw(0, held_out=True), 0, 5, length=800, depth=1.0)
    for row in rows.tokens:
        stretch = run.tokenizer.decode(row).split("\n", 1)[1].split(" One of the special")[0]
        assert len(stretch) == 800 - task.shortest() and stretch in text.strip("\0") + "\0" + text


def test_the_task_a_run_trains_on_is_the_one_it_is_asked(make):
    run = make(data__weights__text=0.5, data__weights__induction_complete=1.0)
    assert retrieval.task_of(run) == "induction_complete"
    assert retrieval.task_of(make(data__weights__mqar=1.0)) == "mqar" and retrieval.task_of(make()) == "passkey"


def test_a_real_model_is_asked_for_needles(make):
    """From end to end, ragged prompts included: what is generated is what teacher forcing says, where that is right."""
    run = make(data__length=63, eval__retrieval__task="mqar_gaps", eval__multiples=(1,), eval__retrieval__examples=6)
    (entry,) = evaluated(run)["by_length"]
    assert entry["examples"] == 24 and entry["exact_match"]["examples"] == 6 and entry["loss"] > 0


def test_a_number_of_pairs_is_a_dimension_of_the_grid(recall_run, monkeypatch):
    """An oracle that knows four pairs at most: each number of pairs has its own cells, and the headline the run's."""

    def score(model, params, batch):
        many = [len(set(row[: row.tolist().index(row[0], 1)][::2].tolist())) for row in batch["tokens"]]
        knows = (np.array(many) <= 4)[:, None]
        return np.zeros(batch["targets"].shape), np.where(knows, batch["targets"], -1)

    monkeypatch.setattr(scoring, "score", score)
    setting = {"eval__multiples": (1, 2), "eval__lengths": (40, 30), "eval__retrieval__generate": False}
    setting["eval__retrieval__control"] = False  # it would know as much as the oracle does
    result = evaluated(recall_run(**setting, eval__retrieval__needles=(8, 2, 4), data__mqar__vocab_size=64))
    messages = [(e["length"], e["pairs"], e["accuracy"]) for e in result["by_length"]]
    assert messages == [(15, 2, 1.0), (15, 4, 1.0), (15, 8, None), (30, 2, 1.0), (30, 4, 1.0), (30, 8, None),
                    (40, 2, 1.0), (40, 4, 1.0), (40, 8, 0.0)]  # fmt: skip
    assert result["by_length"][2]["reason"] == "8 pairs and their questions take 31 tokens"
    assert result["by_length"][-1]["multiple"] == 40 / 15
    assert result["pairs"] == 4 and result["accuracy"] == 1.0
    assert {(c["length"], c["pairs"], c["accuracy"]) for c in result["cells"]} == {
        t for t in messages if t[2] is not None
    }
    lengths = result["effective_length"]["by_pairs"]
    assert [lengths[n]["accuracy"]["trained"]["length"] for n in "248"] == [40, 40, 0]
    assert result["effective_length"]["accuracy"] == lengths["4"]["accuracy"]
    assert {record["pairs"] for record in result["records"]} == {2, 4, 8}


@pytest.mark.parametrize("name, answers", [("niah_multikey_1", (1, 1)), ("variable_tracking", (3, 6))])
def test_a_number_of_needles_is_what_a_row_holds(make, knower, name, answers):
    setting = {"data__length": 127, "data__retrieval__form": "short", "eval__retrieval__depths": 2}
    setting |= {"eval__multiples": (1,), "eval__retrieval__examples": 2, "eval__retrieval__needles": (2, 5)}
    result = evaluated(make(**setting, eval__retrieval__task=name))
    assert [(e["pairs"], e["examples"] // 4, e["accuracy"]) for e in result["by_length"]] == [
        (2, answers[0], 1.0), (5, answers[1], 1.0)
    ]  # fmt: skip
    assert result["pairs"] == 5  # the run's own number, 4, was not asked


def test_one_row_asked_at_several_depths_counts_once(make, knower):
    """The shortest row there is has one place for its needle, whatever the depth."""
    short = {"data__retrieval__form": "short", "eval__multiples": (1, 4), "eval__retrieval__depths": 5}
    needed = retrieval.make(make(**short), "passkey").shortest() - 1
    result = evaluated(make(**short, data__length=needed, eval__retrieval__examples=6, eval__retrieval__task="passkey"))
    shortest, longer = result["by_length"]
    assert shortest["examples"] == shortest["exact_match"]["examples"] == 6
    assert longer["examples"] + longer["near"]["examples"] == 30
    (cell,) = [cell for cell in result["cells"] if cell["length"] == needed]
    assert cell["depth"] == 0 and cell["merged"] == [0.25, 0.5, 0.75, 1.0] and cell["examples"] == 6
    assert not any("merged" in cell for cell in result["cells"] if cell["length"] > needed)


@pytest.mark.parametrize("text, held", [
    ("12,345", True), (" 12.", True), ("12", True), ("312", False), ("123", False), ("a12", False), ("1 2", False)
])  # fmt: skip
def test_an_answer_is_found_as_a_whole(text, held):
    assert holds(text, "12") is held
    assert holds("Value: ABC-d.", "abc-D")


def test_answers_in_another_order_are_found_but_not_at_their_place(make, knower, monkeypatch):
    """Generation that gives one answer of two twice, and the right ones the wrong way round."""
    right = scoring.answer

    def answer(model, params, prompts, max_new, mask_BT=None):
        given = right(model, params, prompts, max_new, mask_BT)
        texts = [bytes(row.tolist()).decode().split(",") for row in given]
        swapped = [",".join(reversed(text) if row % 2 else [text[0]] * len(text)) for row, text in enumerate(texts)]
        return np.array([list(text.encode()) for text in swapped])

    monkeypatch.setattr(scoring, "answer", answer)
    setting = {"data__length": 127, "data__retrieval__form": "short", "data__retrieval__needles": 2}
    setting |= {"eval__retrieval__depths": 1, "eval__retrieval__examples": 8, "eval__multiples": (1,)}
    (entry,) = evaluated(make(**setting, eval__retrieval__task="niah_multiquery"))["by_length"]
    assert entry["accuracy"] == 1.0 and entry["examples"] == 16
    # Even rows: the first at its place, the other nowhere. Odd rows: both found, none at its place.
    assert entry["exact_match"]["correct"] == 4 and entry["exact_match"]["rows"]["correct"] == 0
    assert entry["answers_found"]["correct"] == 4 + 8 and entry["answers_found"]["rows"]["correct"] == 4


def test_tokens_beyond_the_answer_may_hold_it(recall_run, monkeypatch):
    requested = []

    def answer(model, params, prompts, max_new, **_):
        requested.append(max_new)
        return np.concatenate([np.full((len(prompts), max_new - 1), 1), recalled(prompts, 4)], axis=1)

    monkeypatch.setattr(scoring, "answer", answer)
    result = evaluated(recall_run(eval__retrieval__extra_tokens=2, eval__multiples=(1,)))["by_length"][0]
    assert (
        set(requested) == {3} and result["exact_match"]["correct"] == 0 and result["answers_found"]["accuracy"] == 1.0
    )
    learned = recall_run(eval__retrieval__extra_tokens=9, eval__multiples=(1,), model__position__kind="learned")
    requested.clear()
    evaluated(learned)
    # The prompt of 15 tokens fills the table, and the last new token is never read.
    assert set(requested) == {1}
