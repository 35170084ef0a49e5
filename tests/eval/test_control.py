"""The local baseline: a window of the training length knows nothing from beyond it, and says so for every task."""

import numpy as np
import pytest

from configs.rules import tasks
from eval.progress import Quiet
from eval.quality import retrieval, scoring
from eval.variants import CONTROL, at_training_length, control, reach, variants
from tests.data.retrieval.common import SQUAD

SCHEMES = [
    {"position__kind": "none"},
    {"position__kind": "alibi"},
    {"position__kind": "rope"},
    {"position__kind": "t5"},
    {"position__kind": "cope"},
    {"position__pattern": ("rope", "none")},
    {"attention__window_pattern": (4, 0)},
    {"attention__window_pattern": (0, 100)},
    {"attention__kind": "mla"},
    {"attention__kernel": "blocked"},
    {"attention__kernel": "reference", "position__kind": "alibi"},
]


def local_of(run, multiple: float = 6.0):
    """The run's control at six times its training length of 8."""
    return control(run.config, next(v for v in variants(run.config) if v.multiple == multiple))


def logits(model, params, tokens: np.ndarray) -> np.ndarray:
    """Each target's loss: another logit shows in it."""
    targets = np.full(tokens.shape, 7)
    return scoring.score(model, params, {"tokens": tokens, "targets": targets})[0]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_lies_out_of_the_window_changes_nothing(make, scheme):
    """A pair at the row's beginning is perturbed: the control's predictions beyond its reach stay, the run's change."""
    fields = {f"model__{name}": value for name, value in scheme.items()}
    run = make(data__length=8, model__num_layers=2, eval__multiples=(6,), **fields)
    local = local_of(run)
    assert local.scaling == CONTROL and local.reason is None and local.length == 48
    far = reach(local.model)
    # Layers hand on what they read: two windows of 8 reach 14 tokens, windows of 4 and 8 ten.
    assert far == (10 if scheme.get("attention__window_pattern") == (4, 0) else 14)
    rng = np.random.default_rng(0)
    tokens = rng.integers(33, 126, (2, 48)).astype(np.int32)
    other = tokens.copy()
    other[:, :2] = rng.integers(1, 32, (2, 2))
    before, after = (logits(local.model, run.params, x) for x in (tokens, other))
    assert not np.array_equal(before[:, 2 : 2 + far], after[:, 2 : 2 + far])
    np.testing.assert_array_equal(before[:, 2 + far :], after[:, 2 + far :])
    own_before, own_after = (logits(run.config.model, run.params, x) for x in (tokens, other))
    if scheme.get("attention__window_pattern") != (4, 0):
        assert not np.array_equal(own_before[:, 2 + far :], own_after[:, 2 + far :])
    # Within the training length it is the run itself.
    short = tokens[:, :8]
    np.testing.assert_allclose(
        logits(local.model, run.params, short), logits(run.config.model, run.params, short), rtol=1e-5
    )


@pytest.mark.parametrize("scheme", [{"position__kind": "none"}, {"position__kind": "alibi"}, {}], ids=str)
def test_decoding_forgets_what_lies_out_of_the_window(make, scheme):
    """Through the KV cache too: prompts that differ beyond the reach go on alike, others do not."""
    fields = {f"model__{name}": value for name, value in scheme.items()}
    run = make(data__length=8, model__num_layers=2, eval__multiples=(6,), model__init_std=1.0, **fields)
    local = local_of(run)
    rng = np.random.default_rng(1)
    prompts = rng.integers(33, 126, (8, 48)).astype(np.int32)
    far, near = prompts.copy(), prompts.copy()
    far[:, :30] = rng.integers(1, 32, (8, 30))
    near[:, -4:-2] = rng.integers(1, 32, (8, 2))
    message, forgotten, changed = (
        scoring.answer(local.model, run.params, given, max_new=4) for given in (prompts, far, near)
    )
    np.testing.assert_array_equal(message, forgotten)
    assert not np.array_equal(message, changed)
    own = [scoring.answer(run.config.model, run.params, given, max_new=4) for given in (prompts, far)]
    assert not np.array_equal(*own)


def test_a_control_keeps_the_smaller_window_and_says_what_it_cannot(make):
    run = make(data__length=8, model__attention__window=5, eval__multiples=(6,))
    assert local_of(run).model.attention.window == 5
    learned = make(data__length=8, model__position__kind="learned", eval__multiples=(6,))
    assert local_of(learned).reason == "the learned table has 8 positions"
    assert at_training_length(run.config).scaling == "trained"  # the run's own config is not touched
    assert run.config.model.attention.window == 5 and learned.config.model.attention.window is None


def copied(row: np.ndarray, column: int, window: int) -> int:
    """The token after the longest match of what stands before, the latest of equal ones, among the keys in sight."""
    begin, best, result = max(0, column - window + 1), 0, -1
    for end in range(column - 1, begin - 1, -1):
        size = 0
        while end - size >= begin and row[end - size] == row[column - size] and size < 12:
            size += 1
        if size > best:
            best, result = size, int(row[end + 1])
    return result


@pytest.fixture
def copier(monkeypatch):
    """A model that copies what followed the last time, as far as its window reaches: retrieval without training."""

    def score(model, params, batch):
        window = model.attention.window or batch["tokens"].shape[1]
        likeliest = np.full(batch["targets"].shape, -1)
        for row, column in np.argwhere(batch["weights"] > 0):
            likeliest[row, column] = copied(batch["tokens"][row], column, window)
        return np.zeros(likeliest.shape), likeliest

    monkeypatch.setattr(scoring, "score", score)


# Of these the copier is always right; the others ask for more than what followed the last time.
COPIED = ("mqar", "mqar_gaps", "passkey", "niah_single_1", "niah_multikey_2", "induction_repeat", "induction_complete")


@pytest.mark.parametrize("name", tasks.SYNTHETIC)
def test_the_control_is_at_chance_beyond_the_training_length(make, copier, name):
    """For every task: what the run retrieves from far the same model with a window of the training length does not."""
    setting = {"data__length": 127, "data__retrieval__form": "short", "data__retrieval__digits": 3}
    if name == "niah_multikey_3":
        setting["data__length"] = 255
    if name == "qa":
        setting |= {"data__length": 511, "eval__retrieval__questions": SQUAD}
    setting |= {"eval__multiples": (1, 4, 8), "eval__retrieval__depths": 3, "eval__retrieval__examples": 24}
    setting |= {"eval__retrieval__generate": False, "eval__retrieval__task": name}
    result = retrieval.evaluate(make(**setting), Quiet())
    first, *beyond = result["by_length"]
    assert first["control"] is None and first["measures_distance"] is None
    assert first["distance"]["median"] < setting["data__length"]
    medians = [entry["distance"]["median"] for entry in result["by_length"]]
    assert medians == sorted(medians) and medians[-1] > 3 * medians[0]
    for entry in beyond:
        low, high = entry["distance"]["quartiles"]
        assert entry["length"] > entry["distance"]["most"] >= high >= entry["distance"]["median"] >= low
        assert entry["distance"]["least"] > setting["data__length"]
        assert entry["control"]["name"] == CONTROL and entry["control"]["examples"] == entry["examples"] >= 24
        assert entry["control"]["accuracy"] <= entry["chance"] + 0.08
        assert entry["measures_distance"] is True
        if name in COPIED:
            assert entry["accuracy"] > 0.95
    for cell in result["cells"]:
        if cell["length"] > setting["data__length"] and cell["distance"]["least"] > setting["data__length"]:
            assert cell["measures_distance"] is True
    # A needle right before the question is found by the control, and the cell says that it tells no distance.
    if name in ("passkey", "niah_single_1", "induction_repeat"):
        last = [cell for cell in result["cells"] if cell["depth"] == 1.0 and cell["length"] > setting["data__length"]]
        assert all(cell["control"]["accuracy"] > 0.95 and cell["measures_distance"] is False for cell in last)


def test_a_condition_that_the_control_can_answer_is_marked_and_extends_nothing(make, copier):
    """A little beyond the training length a window of it still sees most pairs; without a control nothing is known."""
    setting = {"data__weights__text": 0.0, "data__weights__mqar": 1.0, "data__length": 63, "data__mqar__pairs": 16}
    setting |= {"eval__retrieval__generate": False, "eval__retrieval__examples": 40}
    result = retrieval.evaluate(make(**setting, eval__multiples=(1,), eval__lengths=(64, 255)), Quiet())
    near, far = result["by_length"][1:]
    assert near["measures_distance"] is False and near["distance"]["least"] <= 63 and near["near"] is None
    assert far["measures_distance"] is True and far["accuracy"] == 1.0
    assert result["effective_length"]["accuracy"]["trained"] == {"length": 255, "bounded": False}
    off = retrieval.evaluate(make(**setting, eval__lengths=(255,), eval__retrieval__control=False), Quiet())
    assert off["by_length"][-1]["control"] is None and off["by_length"][-1]["measures_distance"] is None
    assert not any(record["answer"] == "control" for record in off["records"])
    controlled = [record for record in result["records"] if record["answer"] == "control"]
    assert {record["length"] for record in controlled} == {64, 255}
    right = [record["correct"] for record in controlled if record["length"] == 255]
    assert sum(right) == far["control"]["correct"] and len(right) == far["control"]["examples"]
