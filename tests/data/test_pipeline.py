"""Training batches: the same whatever prepares them, resumed anywhere, mixed to the row."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configs.errors import UserError
from configs.rules import tasks
from data import pipeline, sources, tokenizers
from tests.data.common import Batch, same, settings, words, write

CURRICULUM = (
    {"steps": 3, "length": 15, "batch_size": 8, "pairs": 2, "weights": {"text": 0.0, "mqar": 1.0}},
    {"steps": 5, "length": 31, "batch_size": 4, "weights": {"text": 0.3, "mqar": 0.7}},
)
MIXED = {"data__curriculum": CURRICULUM, "data__weights__mqar": 0.5, "data__length": 24, "data__batch_size": 5}


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, str]:
    """A dozen documents, about three thousand bytes: an epoch of a few dozen batches."""
    folder = tmp_path_factory.mktemp("texts")
    write(folder / "in", {f"{i}.txt": words(i, 20 + 10 * i) for i in range(12)})
    return {"data__path": str(folder / "in/*.txt"), "data__cache_dir": str(folder / "cache")}


def open_stream(texts: dict[str, str], **overrides) -> pipeline.TrainStream:
    config = settings(**texts, **overrides)
    corpus = sources.open_data(config.data)
    return pipeline.TrainStream(config, tokenizers.load(config.data, corpus), corpus)


def take(stream: pipeline.TrainStream, count: int) -> list[Batch]:
    result = list(itertools.islice(stream, count))
    stream.close()
    return result


def is_text(batch: Batch) -> np.ndarray:
    """Which rows are text: they score every place, or hold tokens above recall's 64; bool [B]."""
    return (batch["weights"][:, :3] > 0).all(axis=1)


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_resumed_anywhere_it_goes_on_the_same(texts, packing):
    count, draw = 90, random.Random(packing)
    stream = open_stream(texts, **MIXED, data__packing=packing)
    batches, states, stages = [], [stream.get_state()], []
    for _ in range(count):
        batches.append(next(stream))
        states.append(json.loads(json.dumps(stream.get_state())))
        stages.append(stream.stage)
    assert stages == [0] * 3 + [1] * 5 + [2] * (count - 8)
    assert len({batch["tokens"].tobytes() for batch in batches}) == count
    # Mid-stage, at the stages' borders, and anywhere: forwards and back, in one used stream and in fresh ones.
    for point in [1, 3, 8, 0, *draw.sample(range(count), 6)]:
        stream.set_state(states[point])
        assert stream.stage == stages[max(point - 1, 0)] and stream.get_state() == states[point]
        assert all(same(*pair) for pair in zip(take(stream, 4), batches[point:], strict=False))
        fresh = open_stream(texts, **MIXED, data__packing=packing, data__prefetch=0)
        fresh.set_state(states[point])
        assert all(same(*pair) for pair in zip(take(fresh, 4), batches[point:], strict=False))
    stream.close()


def test_workers_change_nothing(texts):
    """Two processes against none, from the middle of a stage on, over its end; and back to none."""
    alone = take(open_stream(texts, **MIXED), 14)
    stream = open_stream(texts, **MIXED, data__workers=2)
    stream.set_state({"batches": 5})
    results = [next(stream) for _ in range(7)]
    state = json.loads(json.dumps(stream.get_state()))
    stream.close()
    assert all(same(*pair) for pair in zip(results, alone[5:12], strict=True))
    fresh = open_stream(texts, **MIXED)
    fresh.set_state(state)
    assert all(same(*pair) for pair in zip(take(fresh, 2), alone[12:], strict=True))


def test_shapes_and_keys_follow_the_stage(texts):
    for packing, more in (("contiguous", set()), ("segments", {"positions", "segments"})):
        for number, batch in enumerate(take(open_stream(texts, **MIXED, data__packing=packing), 10)):
            shape = (8, 15) if number < 3 else (4, 31) if number < 8 else (5, 24)
            assert batch.keys() == {"tokens", "targets", "weights"} | more
            assert {values.shape for values in batch.values()} == {shape}
            assert {values.dtype.name for name, values in batch.items() if name != "weights"} == {"int32"}
            assert batch["weights"].dtype == np.float32


def test_recall_alone_reads_no_text():
    config = settings(data__weights__text=0.0, data__weights__mqar=1.0, data__packing="segments")
    (batch,) = take(pipeline.TrainStream(config, None, None), 1)
    assert batch.keys() == {"tokens", "targets", "weights"} and batch["tokens"].max() < 64


def test_seeds(texts):
    seeds = (0, 1, 2**32, 2**32 + 1, 2**62, 2**63 - 1)
    first = {seed: take(open_stream(texts, **MIXED, seed=seed), 10) for seed in seeds}
    for stage in (0, 4, 9):
        assert len({batches[stage]["tokens"].tobytes() for batches in first.values()}) == len(seeds)
    again = take(open_stream(texts, **MIXED, seed=2**32), 10)
    assert all(same(*pair) for pair in zip(again, first[2**32], strict=True))


@pytest.mark.parametrize(("text", "mqar"), [(0.3, 0.7), (1.0, 2.0), (0.05, 0.95), (1.0, 1e-3)])
def test_shares_hold_to_the_row(texts, text, mqar):
    overrides = {"data__weights__text": text, "data__weights__mqar": mqar, "data__batch_size": 7}
    rows = 0
    for number, batch in enumerate(take(open_stream(texts, **overrides), 60), 1):
        rows += is_text(batch).sum()
        assert abs(rows - number * 7 * text / (text + mqar)) < 1


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4), st.integers(1, 64))
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_row_has_one_source_and_shares_never_drift(weights, batch_size):
    by_name = {str(i): weight for i, weight in enumerate(weights)}
    mixture = pipeline.Mixture({name: None for name in by_name}, by_name, batch_size)
    before = [0] * len(weights)
    for rows in [*range(40), 10**6, 10**6 + 1, 10**12]:
        taken = mixture.taken(rows)
        assert sum(taken) == rows
        assert all(now >= then for now, then in zip(taken, before, strict=True))
        assert all(
            abs(n - rows * w / sum(weights)) < len(weights) + rows * 1e-12 for n, w in zip(taken, weights, strict=True)
        )
        before = taken


def test_no_row_of_a_mixture_is_left_out_or_shown_twice(texts):
    """The text rows of a mixed stream are those of the text alone, one after the other."""
    alone = np.concatenate([batch["tokens"] for batch in take(open_stream(texts, data__batch_size=1), 48)])
    mixed = take(open_stream(texts, data__weights__mqar=1.5, data__batch_size=6), 20)
    rows = np.concatenate([batch["tokens"][is_text(batch)] for batch in mixed])
    assert np.array_equal(rows, alone)


def test_stages_take_the_main_settings_values():
    config = settings(data__curriculum=({"steps": 2, "length": 31}, *CURRICULUM), data__mqar__pairs=3)
    main = config.data.weights.to_dict()
    assert main == {"text": 1.0, **dict.fromkeys(tasks.SYNTHETIC, 0.0)}
    assert pipeline.stages(config) == [
        pipeline.Stage(2, 31, 4, 3, 4, main),
        pipeline.Stage(3, 15, 8, 2, 4, {**main, "text": 0.0, "mqar": 1.0}),
        pipeline.Stage(5, 31, 4, 3, 4, {**main, "text": 0.3, "mqar": 0.7}),
        pipeline.Stage(None, 16, 4, 3, 4, main),
    ]


def test_a_text_shorter_than_a_row(tmp_path):
    write(tmp_path, {"a.txt": "a short text of some words"})
    texts = {"data__path": str(tmp_path / "a.txt"), "data__cache_dir": str(tmp_path / "cache")}
    with pytest.raises(UserError, match=r"the train split has 24 tokens, fewer than one row of data\.length \+ 1 = 65"):
        open_stream(texts, data__length=64)
    (batch,) = take(open_stream(texts, data__length=64, data__packing="segments"), 1)
    assert (batch["weights"].sum(axis=1) == 23).all(), "packed documents are padded"


def test_text_is_in_the_batches(texts):
    """What is trained on is the text: rows decode to stretches of documents joined by the separator."""
    config = settings(**texts)
    joined = "\0".join(sources.open_data(config.data).train) + "\0"
    for batch in take(open_stream(texts), 10):
        for row in batch["tokens"]:
            assert tokenizers.Bytes().decode(row) in joined + joined
