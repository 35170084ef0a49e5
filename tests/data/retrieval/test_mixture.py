"""Tasks as sources of the training mixture: fresh, resumable, weighted, grown by a curriculum, or refused."""

import itertools
import json
import re

import numpy as np
import pytest

from configs import base, cli, validate
from configs.errors import ConfigError, UserError
from configs.rules import tasks
from data import fingerprint, pipeline, retrieval, sources, tokenizers
from tests.data.common import same, settings, write
from tests.data.retrieval.common import SQUAD, TEXT
from training.loop.validation import batches
from training.run_directory.run import open_data, open_tokenizer

# Bare tokens and needles, short and few; then the text too, and at last every task but those with long rows.
BEGIN = ("passkey", "niah_multikey_1", "mqar_gaps")
LONG = ("niah_single_3", "niah_multikey_3", "qa")
NOTHING = dict.fromkeys(("text", *tasks.SYNTHETIC), 0.0)
CURRICULUM = (
    {
        "steps": 3,
        "length": 95,
        "batch_size": 9,
        "needles": 1,
        "pairs": 2,
        "weights": NOTHING | dict.fromkeys(BEGIN, 1.0),
    },
    {
        "steps": 3,
        "length": 127,
        "batch_size": 7,
        "needles": 2,
        "weights": NOTHING | {"text": 1.0, "niah_multivalue": 1.0, "selective_copy": 2.0},
    },
)
MIXED = {
    "data__length": 255,
    "data__batch_size": 16,
    "data__curriculum": CURRICULUM,
    "data__retrieval__form": "short",
    "data__retrieval__digits": 3,
    "data__retrieval__letters": 3,
    **{f"data__weights__{name}": 0.5 for name in tasks.TASKS if name not in LONG},
}
ONE = {"data__weights__text": 0.0, "data__length": 127, "data__retrieval__form": "short"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    write(folder / "in", {f"{i}.txt": TEXT[i:] for i in range(10)})
    return {"data__path": str(folder / "in/*.txt"), "data__cache_dir": str(folder / "cache")}


def open_stream(texts, **overrides) -> pipeline.TrainStream:
    config = settings(**texts, **overrides)
    corpus = open_data(config)
    return pipeline.TrainStream(config, open_tokenizer(config, corpus), corpus)


def take(stream, count):
    result = list(itertools.islice(stream, count))
    stream.close()
    return result


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_resumed_anywhere_it_goes_on_the_same(texts, packing):
    stream = open_stream(texts, **MIXED, data__packing=packing)
    result, states = [], [stream.get_state()]
    for _ in range(12):
        result.append(next(stream))
        states.append(json.loads(json.dumps(stream.get_state())))
    stream.close()
    assert len({batch["tokens"].tobytes() for batch in result}) == 12, "fresh at every step"
    assert [batch["tokens"].shape for batch in result] == [(9, 95)] * 3 + [(7, 127)] * 3 + [(16, 255)] * 6
    for point in (2, 3, 5, 9):
        fresh = open_stream(texts, **MIXED, data__packing=packing, data__prefetch=0)
        fresh.set_state(states[point])
        assert all(same(*pair) for pair in zip(take(fresh, 3), result[point:], strict=False))
    if packing == "segments":
        assert all((batch["segments"] > 0).any() for batch in result)


def test_workers_change_nothing(texts):
    alone = take(open_stream(texts, **MIXED), 10)
    stream = open_stream(texts, **MIXED, data__workers=2)
    stream.set_state({"batches": 2})
    assert all(same(*pair) for pair in zip(take(stream, 8), alone[2:], strict=True))


@pytest.mark.parametrize("name", ["passkey", "selective_copy"])
def test_another_stage_of_the_same_setting_draws_other_rows(texts, name):
    stage = {"steps": 1, "length": 127, "weights": NOTHING | {name: 1.0}}
    stream = open_stream(texts, **ONE, **{f"data__weights__{name}": 1.0}, data__curriculum=(stage, stage))
    assert len({batch["tokens"].tobytes() for batch in take(stream, 3)}) == 3


def test_the_curriculum_grows_needles_and_pairs(texts):
    result = take(open_stream(texts, **MIXED), 6)
    text = "\n".join(bytes(row.astype(np.uint8)).decode(errors="replace") for row in result[0]["tokens"][:6])
    assert len(re.findall(r"#[a-z]{3}=\d{3};", text)) == 3 + 3, "one pass key a row, one needle a row"
    bare = [row[row < 64] for batch in result[:3] for row in batch["tokens"][6:]]
    assert max((row >= 32).sum() for row in bare) == 4, "two pairs at most: two values told, two answered"


@pytest.mark.parametrize(("answers", "text"), [(1.0, 0.0), (2.0, 0.125)])
def test_answers_and_text_have_their_weights(texts, answers, text):
    weights = {"data__retrieval__answer_weight": answers, "data__retrieval__text_weight": text}
    config = settings(**texts, **ONE, **weights, data__weights__niah_multivalue=1.0, data__retrieval__digits=4)
    corpus = open_data(config)
    stream = pipeline.TrainStream(config, tokenizers.Bytes(), corpus)
    for batch in take(stream, 3):
        for targets, row in zip(batch["targets"], batch["weights"], strict=True):
            answer = re.search(r"=([\d,]+)$", bytes(targets.astype(np.uint8)).decode(errors="replace"))
            scored = len(answer[1])
            assert row.tolist() == [text] * (len(row) - scored) + [answers] * scored


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_trains_alone_and_reads_only_what_it_needs(texts, name):
    config = settings(**texts, data__weights__text=0.0, **{f"data__weights__{name}": 1.0}, data__length=767,
                      data__retrieval__questions=SQUAD)  # fmt: skip
    corpus = open_data(config)
    own = tasks.haystack(name, "own") if name in tasks.IN_TEXT else ""
    assert (corpus is not None) == (own == "text")
    tokenizer = open_tokenizer(config, corpus)
    assert (tokenizer is not None) == (name in tasks.IN_TEXT)
    (batch,) = take(pipeline.TrainStream(config, tokenizer, corpus), 1)
    assert batch.keys() == {"tokens", "targets", "weights"} and batch["tokens"].shape == (4, 767)
    assert set(np.unique(batch["weights"])) == {0.0, 1.0}
    assert config.model.vocab_size == (256 if tokenizer else 64)
    assert tasks.main_task(config) == name
    # Validation is on the task's own held-out rows, the same at every call.
    config.eval.batch_size = 100
    first, second = batches(config, tokenizer, corpus), batches(config, tokenizer, corpus)
    assert [len(one["tokens"]) for one in first] == [100] * 3 and not first[2]["weights"][56:].any()
    assert all(same(*pair) for pair in zip(first, second, strict=True))


def test_validation_does_not_depend_on_the_batch_size():
    task = retrieval.make("passkey", settings(), tokenizers.Bytes(), None)
    big, small = (
        np.concatenate([b["tokens"] for b in retrieval.evaluation(task, 3, length=150, batch_size=size, rows=20)])
        for size in (20, 6)
    )
    assert np.array_equal(big, small[:20])


def test_the_run_is_known_by_its_tasks(texts):
    def known(**overrides):
        config = settings(**texts, **overrides)
        corpus = open_data(config)
        return fingerprint(config, corpus, open_tokenizer(config, corpus))

    alone, needles = known(), {"data__weights__niah_multivalue": 1.0, "data__length": 1023}
    assert alone["mixture"] == [{"text": 1.0}]
    cases = [
        {},
        {"data__retrieval__needles": 2},
        {"data__retrieval__digits": 3},
        {"data__retrieval__haystack": "noise"},
    ]
    result = [alone] + [known(**needles, **case) for case in cases]
    result.append(known(data__weights__mqar_gaps=1.0))
    result.append(known(data__weights__mqar_gaps=1.0, data__mqar__power=1.0))
    assert len({one["fingerprint"] for one in result}) == len(result)
    assert known(data__retrieval__needles=2)["fingerprint"] == alone["fingerprint"], "not trained on"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data__weights__mqar_gaps": 1.0, "data__mqar__pairs": 5}, ["data.mqar.pairs = 5", "19", "16"]),
        ({"data__weights__induction_repeat": 1.0, "data__retrieval__needles": 8}, ["retrieval.needles = 8", "17"]),
        ({"data__weights__selective_copy": 1.0, "data__retrieval__needles": 9}, ["retrieval.needles = 9", "18"]),
        ({"data__weights__mqar_gaps": 1.0, "data__mqar__pairs": 4, "data__mqar__vocab_size": 8},
         ["data.mqar.pairs = 4", "vocab_size = 10"]),
        ({"data__weights__passkey": 1.0, "data__retrieval__haystack": "distractors"}, ["passkey has none"]),
        ({"data__retrieval__haystack": "txt"}, ["data.retrieval.haystack = 'txt'", "did you mean text"]),
        ({"data__retrieval__digits": 1}, ["data.retrieval.digits = 1", "2 .. 18"]),
        ({"data__retrieval__vocab_size": 8}, ["data.retrieval.vocab_size = 8", "16 or more"]),
        ({"data__mqar__power": 0.0}, ["data.mqar.power = 0.0", "(0, 1]"]),
        ({"data__curriculum": ({"steps": 1, "length": 7, "weights": {"induction_repeat": 1.0}},)},
         ["data.retrieval.needles = 4", "9", "data.curriculum[0].length is 7"]),
        ({"data__curriculum": ({"steps": 1, "length": 15, "needles": 9, "weights": {"selective_copy": 1.0}},)},
         ["data.curriculum[0].needles = 9", "18"]),
        ({"data__curriculum": ({"steps": 1, "length": 15, "weights": {"pass_key": 1.0}},)}, ["did you mean passkey"]),
        ({"data__curriculum": ({"steps": 1, "length": 15, "needles": 0},)}, ["needles = 0", "above 0"]),
        ({"eval__retrieval__needles": (1, 0)}, ["eval.retrieval.needles = (1, 0)", "0 is not allowed"]),
        ({"eval__retrieval__needles": (1, 2)}, ["eval.retrieval.needles", "passkey has no number", "niah_multikey_1"]),
        ({"eval__retrieval__task": "mqar", "eval__retrieval__needles": (8, 33)},
         ["eval.retrieval.needles = (8, 33): 33 of mqar", "data.mqar.vocab_size = 66", "not 64"]),
        ({"eval__retrieval__task": "mqar_gaps", "eval__retrieval__needles": (32,)}, ["data.mqar.vocab_size = 66"]),
        ({"eval__retrieval__task": "induction_repeat", "eval__retrieval__needles": (63,)},
         ["data.retrieval.vocab_size = 65"]),
        ({"eval__lengths": (512, 0.5)}, ["eval.lengths", "0.5 is not allowed", "whole numbers above 0"]),
        ({"eval__multiples": ()}, ["eval.multiples = ()", "eval.lengths"]),
        ({"eval__retrieval__extra_tokens": -1}, ["eval.retrieval.extra_tokens = -1", "0 or more"]),
        ({"eval__retrieval__task": "niah_multikeys_1"}, ["eval.retrieval.task", "did you mean niah_multikey_1"]),
    ],
)  # fmt: skip
def test_impossible_configs_are_refused(overrides, words):
    config = base.get_config()
    cli.apply(config, {"data.length": 16} | {name.replace("__", "."): value for name, value in overrides.items()})
    with pytest.raises(ConfigError) as caught:
        validate.check(config)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_what_does_not_fit_the_data_is_refused_before_the_first_batch(texts, tmp_path):
    with pytest.raises(UserError, match=r"data\.weights\.passkey: rows of 64 tokens are too short.* up to 79;"):
        open_stream(texts, data__weights__passkey=1.0, data__length=64)
    write(tmp_path, {"a.txt": "only letters here " * 40})
    texts = {"data__path": f"{tmp_path}/a.txt", "data__cache_dir": f"{tmp_path}/cache", "data__split": "first"}
    with pytest.raises(UserError, match="niah_single_1: the tokenizer cannot encode"):
        open_stream(texts, data__weights__niah_single_1=1.0, data__tokenizer="char", data__length=512)


def test_training_takes_its_haystacks_from_the_training_split(tmp_path):
    half = 6000
    write(tmp_path, {"a.txt": "a" * half + "b" * half})
    config = settings(data__path=f"{tmp_path}/a.txt", data__cache_dir=f"{tmp_path}/cache", data__split="first",
                      data__train_share=0.5, data__weights__niah_single_2=1.0, **ONE)  # fmt: skip
    corpus = sources.open_data(config.data)
    (batch,) = take(pipeline.TrainStream(config, tokenizers.Bytes(), corpus), 1)
    assert (batch["tokens"] == ord("a")).sum() > 300 and (batch["tokens"] == ord("b")).sum() < 5
    (held_out, *_) = batches(config, tokenizers.Bytes(), corpus)
    assert (held_out["tokens"] == ord("b")).sum() > 300 and (held_out["tokens"] == ord("a")).sum() < 20
