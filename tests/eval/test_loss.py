"""The loss: every token of the split once, whatever the batch size; longer lengths really evaluated."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from data import mqar
from eval.progress import Quiet
from eval.quality import loss, scoring
from training.run_directory.run import Run, open_data


def evaluated(run: Run) -> dict:
    return loss.evaluate(run, Quiet())


def held_out(text: Path) -> np.ndarray:
    """The validation split as the config says it: the last tenth of the characters, as bytes."""
    whole = text.read_text()
    return np.frombuffer(whole[int(0.9 * len(whole)) :].encode(), np.uint8).astype(np.int32)


def token_losses(run: Run, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Each token's loss, float64 [n, T], from the model's logits by numpy alone."""
    logits = jax.jit(lambda p, t: nnx.merge(run.graphdef, p)(t))(run.params, inputs)
    return -np.take_along_axis(log_softmax(np.asarray(logits, np.float64), axis=-1), targets[..., None], -1)[..., 0]


def expected_losses(run: Run, tokens: np.ndarray, length: int) -> np.ndarray:
    """Each token's loss, in rows of `length` one after the other, the last of them short."""
    scored = len(tokens) - 1
    padding = (0, -scored % length)
    inputs, targets = (np.pad(part, padding).reshape(-1, length) for part in (tokens[:-1], tokens[1:]))
    return token_losses(run, inputs, targets).reshape(-1)[:scored]


def test_the_loss_is_numpys_over_every_token_of_the_split(make, text: Path):
    run = make()
    tokens = held_out(text)
    expected = expected_losses(run, tokens, 16)
    result = evaluated(run)
    assert result["tokens"] == len(tokens) - 1 == len(expected)
    assert result["loss"] == pytest.approx(expected.mean(), abs=2e-6)
    low, high = result["loss_interval"]
    assert low < result["loss"] < high
    assert result["source"] == "text"


@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_the_loss_can_be_limited_to_rows_from_all_over_the_split(make, text: Path, packing: str, monkeypatch):
    scored: list[np.ndarray] = []
    original = scoring.score

    def spy(model, params, batch, rules=None):
        losses, likeliest = original(model, params, batch, rules)
        scored.append(losses[batch["weights"] > 0])
        return losses, likeliest

    monkeypatch.setattr(scoring, "score", spy)
    fields = {"data__packing": packing, "eval__multiples": (1,), "eval__tokens": 16}
    whole = evaluated(make(eval__loss_tokens=0, **fields))
    every = np.concatenate(scored)[: whole["tokens"]]
    scored.clear()
    part = evaluated(make(eval__loss_tokens=200, **fields))
    some = np.concatenate(scored)[: part["tokens"]]
    assert whole["tokens"] == whole["settings"]["split_tokens"] == part["settings"]["split_tokens"]
    assert 150 < part["tokens"] <= 208 == 13 * 16, "13 rows"
    assert whole["loss"] == pytest.approx(every.mean(), abs=1e-5)
    assert part["loss"] == pytest.approx(some.mean(), abs=1e-5)
    assert part["bytes"] == part["tokens"] and part["loss"] != whole["loss"]
    if packing == "contiguous":
        rows = np.arange(13) * -(-(len(held_out(text)) - 1) // 16) // 13
        expected = expected_losses(make(), held_out(text), 16)
        places = (rows[:, None] * 16 + np.arange(16)).ravel()
        assert part["loss"] == pytest.approx(expected[places].mean(), abs=2e-6)
        assert rows[-1] * 16 > 0.9 * len(expected), "to its end"


def test_bits_per_byte_of_bytes(make):
    result = evaluated(make(eval__multiples=(1,)))
    assert result["bytes"] == result["tokens"]
    assert result["bits_per_byte"] == pytest.approx(result["loss"] / math.log(2))
    ends = [bound / math.log(2) for bound in result["loss_interval"]]
    assert result["bits_per_byte_interval"] == pytest.approx(ends)


@pytest.mark.fault(26)
@pytest.mark.parametrize("packing", ["contiguous", "segments"])
def test_the_batch_size_changes_nothing(make, packing: str):
    fields = {"data__packing": packing, "eval__multiples": (1, 4)}
    one, other = (evaluated(make(eval__batch_size=size, **fields)) for size in (3, 8))
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-6)
    assert one["tokens"] == other["tokens"] and one["loss_interval"] == pytest.approx(other["loss_interval"], abs=1e-5)
    for here, there in zip(one["by_length"], other["by_length"], strict=True):
        assert here["loss"] == pytest.approx(there["loss"], abs=1e-6) and here["tokens"] == there["tokens"]


def test_every_position_is_counted(make):
    result = evaluated(make())
    curve = result["by_position"]
    assert curve["start"][0] == 0 and curve["end"][-1] == 16 and curve["start"][1:] == curve["end"][:-1]
    assert sum(curve["tokens"]) == result["tokens"]
    assert np.average(curve["loss"], weights=curve["tokens"]) == pytest.approx(result["loss"])


def scored_targets(run: Run, monkeypatch) -> dict[int, np.ndarray]:
    """The targets that count at each length beyond the training length's own, in the order they were scored."""
    seen: dict[int, list[np.ndarray]] = {}
    original = scoring.score

    def spy(model, params, batch, rules=None):
        if model.config.attention.window is None:
            seen.setdefault(batch["tokens"].shape[1], []).append(batch["targets"][batch["weights"] > 0])
        return original(model, params, batch, rules)

    monkeypatch.setattr(scoring, "score", spy)
    evaluated(run)
    return {length: np.concatenate(parts) for length, parts in seen.items()}


@pytest.mark.fault(27)
def test_longer_lengths_use_longer_rows_and_score_the_same_tokens(make, monkeypatch):
    run = make(eval__multiples=(1, 2, 4), eval__tokens=600)
    scored = scored_targets(run, monkeypatch)
    assert sorted(scored) == [16, 32, 64]
    # 600 tokens are 10 stretches of 64; the headline before them scored all of the split.
    np.testing.assert_array_equal(scored[16][-640:], scored[64])
    np.testing.assert_array_equal(scored[32], scored[64])
    assert len(scored[64]) == 640


@pytest.mark.fault(27)
@pytest.mark.parametrize("tokens", [0, 600])
@pytest.mark.parametrize("sliding", [0.0, 0.5])
def test_the_loss_at_a_length_does_not_depend_on_which_others_are_asked(make, tokens, sliding):
    """Divisors, neighbours and lengths that divide nothing, asked for together and alone."""
    setting = {"eval__tokens": tokens, "eval__sliding": sliding, "eval__multiples": (5.5,)}
    (alone,) = evaluated(make(**setting))["by_length"]
    assert alone["length"] == 88 and alone["tokens"] % 88 == 0
    setting |= {"eval__multiples": (1, 5.5, 8, 11), "eval__lengths": (87,)}
    together = evaluated(make(**setting))["by_length"]
    assert [entry["length"] for entry in together] == [16, 87, 88, 128, 176]
    assert together[2] == alone


def test_the_loss_at_a_length_is_that_of_rows_of_exactly_that_length(make, text: Path):
    """Rows end to end over the split; what no whole row holds is dropped and counted."""
    run = make(eval__multiples=(1, 2, 5.5), eval__tokens=0)
    tokens = held_out(text)
    for entry in evaluated(run)["by_length"]:
        length = entry["length"]
        scored = (len(tokens) - 1) // length * length
        expected = expected_losses(run, tokens[: scored + 1], length)
        assert entry["tokens"] == scored and entry["dropped"] == len(tokens) - 1 - scored
        assert entry["loss"] == pytest.approx(expected.mean(), abs=2e-6)
        assert entry["by_position"]["end"][-1] == length


def test_beyond_the_training_length_a_window_of_it_is_scored_beside(make, text: Path):
    """The control is the same rows under a mask of the training length, by a model that is made with that window."""
    run = make(eval__multiples=(1, 4), eval__tokens=0)
    first, beyond = evaluated(run)["by_length"]
    assert "control" not in first
    windowed = make(model__attention__window=16, eval__multiples=(4,), eval__tokens=0)
    own = evaluated(windowed)["by_length"][0]
    control = beyond["control"]
    assert control["name"] == "local baseline" and control["window"] == 16 and control["reach"] == 15
    assert control["loss"] == own["loss"] == own["control"]["loss"] != beyond["loss"]
    assert control["tokens"] == beyond["tokens"]
    assert "control" not in evaluated(make(eval__multiples=(4,), eval__control=False))["by_length"][0]


def test_a_learned_table_ends_without_an_error(make):
    run = make(model__position__kind="learned", eval__scalings=("yarn",))
    first, beyond, scaled, _ = evaluated(run)["by_length"]
    assert first["loss"] is not None and "reason" not in first
    assert beyond["loss"] is None and beyond["reason"] == "the learned table has 16 positions"
    assert "nothing to act on" in scaled["reason"]


def test_a_split_shorter_than_a_length_says_so(make, text: Path):
    run = make(eval__multiples=(1, 1000))
    first, beyond = evaluated(run)["by_length"]
    assert first["loss"] is not None
    assert beyond["loss"] is None and beyond["reason"] == f"the validation split has {len(held_out(text)) - 1} tokens"


def test_a_run_on_recall_alone_is_scored_on_the_rows_that_training_validates_on(recall_run):
    run = recall_run()
    result = evaluated(run)
    assert open_data(run.config) is None
    assert result["source"] == "mqar" and result["bytes"] is None and result["bits_per_byte"] is None
    assert result["by_length"][0]["loss"] == pytest.approx(result["loss"])
    (batch,) = mqar.evaluation(run.config, length=15, batch_size=loss.RECALL_ROWS, rows=loss.RECALL_ROWS)
    losses, _ = scoring.score(run.config.model, run.params, batch)
    counted = batch["weights"] > 0
    assert result["tokens"] == counted.sum()
    assert result["loss"] == pytest.approx(losses[counted].mean(), abs=1e-5)


def test_the_loss_of_answers_beyond_the_training_length_is_of_those_from_farther_back(make, recall_run):
    entry = evaluated(recall_run(eval__multiples=(2,)))["by_length"][0]
    assert entry["tokens"] == 2 * loss.RECALL_ROWS // 2 and entry["control"]["tokens"] == entry["tokens"]
    setting = {"data__weights__text": 0.0, "data__weights__induction_complete": 1.0, "data__length": 63}
    # At twice the length about half of all places lie beyond it.
    within, beyond = evaluated(make(**setting))["by_length"]
    assert within["tokens"] == loss.RECALL_ROWS and 0.3 < beyond["tokens"] / (loss.RECALL_ROWS // 2) < 0.6


@pytest.mark.parametrize("share", [1 / 16, 0.5, 0.3])
def test_sliding_windows_score_the_same_tokens_each_from_its_window(make, text: Path, share: float):
    """By numpy: the windows that the protocol asks for, each alone, and of each only what it has moved by."""
    run = make(eval__multiples=(1, 2), eval__sliding=share, eval__tokens=0)
    tokens = held_out(text)
    result = evaluated(run)["by_length"]
    for entry, window in zip(result, (16, 32), strict=True):
        step = max(1, round(share * window))
        assert entry["sliding"]["stride"] == step
        pieces, counted = [], []
        for row in range(window, len(tokens) - window, window):  # before the first there is no whole window
            for begin in range(row, row + window, step):
                end = min(begin + step, row + window)
                places = np.arange(end - window, end)
                pieces.append(places)
                counted.append(places >= begin)
        index, mask = np.array(pieces), np.array(counted)
        losses = token_losses(run, tokens[index], tokens[index + 1])
        assert entry["sliding"]["tokens"] == entry["tokens"] == mask.sum()
        assert entry["sliding"]["loss"] == pytest.approx(losses[mask].mean(), abs=2e-6)


def test_sliding_needs_twice_the_length_and_documents_that_are_joined(make):
    run = make(eval__multiples=(1, 64, 128), eval__sliding=0.5, eval__tokens=64)
    reasons = [entry.get("reason") for entry in evaluated(run)["by_length"]]
    assert reasons[0] is None and "sliding windows need twice the length" in reasons[2]
    apart = evaluated(make(eval__sliding=0.5, data__packing="segments", eval__multiples=(1,)))
    assert "sliding" not in apart["by_length"][0]


def test_the_loss_of_each_piece_of_text_is_kept_and_parts_of_the_split_are_scored_apart(make):
    results = {split: evaluated(make(eval__split=split)) for split in ("validation", "selection", "test")}
    for split, one in results.items():
        assert one["split"] == split
        text = one["text"]
        assert sum(text["tokens"]) == one["tokens"]
        assert sum(text["loss"]) / one["tokens"] == pytest.approx(one["loss"], abs=1e-5)
    tokens = {split: one["tokens"] for split, one in results.items()}
    assert tokens["selection"] + tokens["test"] == pytest.approx(tokens["validation"], abs=2)
    assert len({one["loss"] for one in results.values()}) == 3
