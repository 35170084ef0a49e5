"""The loss: every token of the split once, whatever the batch size; longer lengths really evaluated."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from eval.progress import Silent
from eval.quality import loss, recall, scoring
from training.run_directory.run import Run, open_data


def evaluated(run: Run) -> dict:
    return loss.evaluate(run, Silent())


def held_out(text: Path) -> np.ndarray:
    """The validation split as the config says it: the last tenth of the characters, as bytes."""
    whole = text.read_text()
    return np.frombuffer(whole[int(0.9 * len(whole)) :].encode(), np.uint8).astype(np.int32)


def expected_losses(run: Run, tokens: np.ndarray, length: int) -> np.ndarray:
    """Each token's loss, in rows of `length` one after the other, from the model's logits by numpy alone."""
    scored = len(tokens) - 1
    padding = (0, -scored % length)
    inputs, targets = (np.pad(part, padding).reshape(-1, length) for part in (tokens[:-1], tokens[1:]))
    logits = jax.jit(lambda p, t: nnx.merge(run.graphdef, p)(t))(run.params, inputs)
    losses = -np.take_along_axis(log_softmax(np.asarray(logits, np.float64), axis=-1), targets[..., None], -1)
    return losses.reshape(-1)[:scored]


def test_the_loss_is_numpys_over_every_token_of_the_split(make, text: Path):
    run = make()
    tokens = held_out(text)
    expected = expected_losses(run, tokens, 16)
    found = evaluated(run)
    assert found["tokens"] == len(tokens) - 1 == len(expected)
    assert found["loss"] == pytest.approx(expected.mean(), abs=2e-6)
    low, high = found["loss_interval"]
    assert low < found["loss"] < high
    assert found["source"] == "text"


def test_bits_per_byte_of_bytes(make):
    found = evaluated(make(eval__multiples=(1,)))
    assert found["bytes"] == found["tokens"]
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
    ends = [bound / math.log(2) for bound in found["loss_interval"]]
    assert found["bits_per_byte_interval"] == pytest.approx(ends)


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
    found = evaluated(make())
    curve = found["by_position"]
    assert curve["start"][0] == 0 and curve["end"][-1] == 16 and curve["start"][1:] == curve["end"][:-1]
    assert sum(curve["tokens"]) == found["tokens"]
    assert np.average(curve["loss"], weights=curve["tokens"]) == pytest.approx(found["loss"])


@pytest.mark.fault(27)
def test_longer_lengths_use_longer_rows_and_score_the_same_tokens(make, monkeypatch):
    run = make(eval__multiples=(1, 2, 4), eval__tokens=200)
    seen: dict[int, list[np.ndarray]] = {}
    original = scoring.score

    def spy(model, params, batch, rules=None):
        length = batch["tokens"].shape[1]
        seen.setdefault(length, []).append(batch["targets"][batch["weights"] > 0])
        return original(model, params, batch, rules)

    monkeypatch.setattr(scoring, "score", spy)
    found = evaluated(run)
    entries = {entry["length"]: entry for entry in found["by_length"]}
    assert sorted(entries) == [16, 32, 64]
    # 200 tokens are 4 rows of 64, so 256 tokens at every length; the headline before it scored all of the split.
    assert {entry["tokens"] for entry in entries.values()} == {256}
    assert entries[64]["by_position"]["end"][-1] == 64
    scored = {length: np.concatenate(parts) for length, parts in seen.items()}
    np.testing.assert_array_equal(scored[16][-256:], scored[64])
    np.testing.assert_array_equal(scored[32], scored[64])


@pytest.mark.fault(27)
def test_the_loss_at_twice_the_length_is_that_of_a_row_twice_as_long(make, text: Path):
    run = make(eval__multiples=(1, 2), eval__tokens=0)
    expected = expected_losses(run, held_out(text), 32)
    entry = evaluated(run)["by_length"][1]
    assert entry["length"] == 32 and entry["tokens"] == len(expected)
    assert entry["loss"] == pytest.approx(expected.mean(), abs=2e-6)


def test_packed_documents_that_are_cut_begin_anew():
    batch = {
        "tokens": np.array([[1, 2, 3, 4, 5, 6, 7, 0]]),
        "targets": np.array([[2, 3, 4, 5, 6, 7, 8, 0]]),
        "weights": np.array([[1.0, 1, 1, 1, 1, 1, 1, 0]]),
        "positions": np.array([[0, 1, 0, 1, 2, 3, 0, 0]]),
        "segments": np.array([[1, 1, 2, 2, 2, 2, 3, 0]]),
    }
    found = loss.cut(batch, 4)
    assert found["positions"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert found["segments"].tolist() == [[1, 1, 2, 2], [2, 2, 3, 0]]
    assert found["weights"].sum() == batch["weights"].sum()
    # A length that does not divide the old one leaves short rows, and no token is lost.
    assert loss.cut(batch, 3)["tokens"].shape == (3, 3) and loss.cut(batch, 3)["weights"].sum() == 7


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


def test_a_run_on_recall_alone_is_scored_on_answers(recall_run):
    run = recall_run()
    found = evaluated(run)
    assert open_data(run.config) is None
    assert found["source"] == "mqar" and found["bytes"] is None and found["bits_per_byte"] is None
    assert found["by_length"][0]["loss"] == pytest.approx(found["loss"])
    rows = recall.rows(run.config, 0, loss.RECALL_ROWS, 15)
    losses, _ = scoring.score(run.config.model, run.params, rows.batch())
    assert found["tokens"] == rows.counted.sum() == 4 * loss.RECALL_ROWS
    assert found["loss"] == pytest.approx(losses[rows.counted].mean(), abs=1e-5)


@pytest.mark.parametrize("share", [1 / 16, 0.5, 0.3])
def test_sliding_windows_score_the_same_tokens_each_from_its_window(make, text: Path, share: float):
    """By numpy: the windows that the protocol asks for, each alone, and of each only what it has moved by."""
    run = make(eval__multiples=(1, 2), eval__sliding=share, eval__tokens=0)
    tokens = held_out(text)
    rows = range(0, len(tokens) - 1, 64)  # twice the longest length
    found = evaluated(run)["by_length"]
    for entry, window in zip(found, (16, 32), strict=True):
        step = max(1, round(share * window))
        assert entry["sliding"]["stride"] == step
        pieces, counted = [], []
        for row in rows:
            for begin in range(row + 32, row + 64, step):
                end = min(begin + step, row + 64)
                places = np.arange(end - window, end)
                pieces.append(places)
                counted.append((places >= begin) & (places < len(tokens) - 1))
        index, mask = np.array(pieces), np.array(counted)
        padded = np.pad(tokens, (0, 128))
        inputs, targets = padded[index], padded[index + 1]
        logits = jax.jit(lambda p, t: nnx.merge(run.graphdef, p)(t))(run.params, inputs)
        losses = -np.take_along_axis(log_softmax(np.asarray(logits, np.float64), axis=-1), targets[..., None], -1)
        assert entry["sliding"]["tokens"] == entry["tokens"] == mask.sum()
        assert entry["sliding"]["loss"] == pytest.approx(losses[..., 0][mask].mean(), abs=2e-6)


def test_sliding_needs_twice_the_length_and_documents_that_are_joined(make):
    run = make(eval__multiples=(1, 64, 128), eval__sliding=0.5, eval__tokens=64)
    reasons = [entry.get("reason") for entry in evaluated(run)["by_length"]]
    assert reasons[0] is None and "sliding windows need twice the length" in reasons[2]
    apart = evaluated(make(eval__sliding=0.5, data__packing="segments", eval__multiples=(1,)))
    assert "sliding" not in apart["by_length"][0]
