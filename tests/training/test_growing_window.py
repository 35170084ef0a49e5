"""A window that grows in training: each stage is the program of a fixed window, and a stopped run goes on exactly."""

import numpy as np
import pytest

from configs import validate
from configs.errors import ConfigError
from configs.rules import growth
from models import counting
from tests.training.test_trainer import parameters, stop_after, trace
from training.loop import pack_compat, trainer
from training.run_directory.files import read_json

SCALING = "model__position__rope__scaling__"
# 4 tokens for 2 steps, 8 for 3, then all 16.
GROWING = {
    "model__attention__window_stages": (dict(steps=2, window=4), dict(steps=3, window=8)),
    f"{SCALING}kind": "yarn",
    f"{SCALING}original_length": 4,
    f"{SCALING}factor": 4.0,
    f"{SCALING}follow": "window",
    "model__vocab_size": 30,
    "budget__amount": 8,
    "log__every_steps": 1,
    "eval__every_steps": 0,
    "data__curriculum": (dict(steps=3, length=16, batch_size=2),),
}


def same(one, other) -> bool:
    own, theirs = parameters(one), parameters(other)
    return {*own} == {*theirs} and all(np.array_equal(own[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_each_stage_is_a_fixed_window_and_a_stopped_run_goes_on_exactly(make_tiny, tmp_path, monkeypatch) -> None:
    config = make_tiny(**GROWING)
    whole = trainer.train(config, tmp_path / "whole", quiet=True)
    lines = trace(tmp_path / "whole")
    assert [line["window"] for line in lines] == [4, 4, 8, 8, 8, None, None, None]

    # FLOPs are those of each step's window and rows.
    model = validate.resolve(config).model
    expected = 0.0
    for step, window in enumerate((4, 4, 8, 8, 8, None, None, None)):
        own = model.copy_and_resolve_references()
        with own.ignore_type():
            own.attention.window = window
        expected += counting.flops_per_token(own, 16)["value"] * 16 * (2 if step < 3 else 4)
    assert whole["flops"] == pytest.approx(expected, rel=1e-12)

    # The first stage is a run of that window, without a scaling; the next step is not.
    fixed = dict(GROWING, model__attention__window_stages=(), model__attention__window=4)
    fixed |= {f"{SCALING}{name}": value for name, value in dict(kind="none", factor=1.0, follow="none").items()}
    trainer.train(make_tiny(**fixed), tmp_path / "fixed", quiet=True)
    losses, of_fixed = ([line["train_loss"] for line in run] for run in (lines, trace(tmp_path / "fixed")))
    assert losses[:2] == of_fixed[:2] and losses[2] != of_fixed[2]

    # Stopped before and at a boundary, in the middle of a stage, and at the last one.
    for step in (1, 2, 5):
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            assert trainer.train(config, tmp_path / "parts", quiet=True)["status"] == "preempted"
    parts = trainer.train(config, tmp_path / "parts", quiet=True)
    assert (parts["status"], parts["step"], parts["flops"]) == ("done", 8, whole["flops"])
    assert trace(tmp_path / "parts") == lines and same(tmp_path / "parts", tmp_path / "whole")
    assert read_json(tmp_path / "whole" / "config.json")["model"]["attention"]["window_stages"]
    assert pack_compat.key(validate.resolve(config)) is None


def test_a_budget_in_flops_counts_each_window(make_tiny) -> None:
    """Spans of steps in which neither the data's stage nor the window's changes."""
    stages = [type("Stage", (), dict(steps=3)), type("Stage", (), dict(steps=None))]
    assert growth.lasting(validate.resolve(make_tiny(**GROWING)), stages) == [
        (2, 0, 0),
        (1, 0, 1),
        (2, 1, 1),
        (None, 1, 2),
    ]


def test_stages_cap_the_windows_of_layers(make_tiny) -> None:
    config = validate.resolve(
        make_tiny(
            model__attention__window_stages=(dict(steps=2, window=4),), model__attention__window_pattern=(2, 0, 8)
        )
    )
    model = growth.at_stage(config, 0).model
    assert model.attention.window_pattern == (2, 4, 4) and model.attention.window_stages == ()
    assert growth.at_stage(config, 1).model.attention.window_pattern == (2, 0, 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__attention__window_stages": (5,)}, ["window_stages[0] = 5", "dict(steps=, window=)"]),
        ({"model__attention__window_stages": (dict(steps=0, window=4),)}, ["window_stages[0].steps = 0", "above 0"]),
        (
            {"model__attention__window_stages": (dict(steps=1, window=8), dict(steps=1, window=8))},
            ["window_stages[0].window = 8", "below", "window_stages[1].window = 8"],
        ),
        ({"model__attention__window": 6}, ["window_stages[1].window = 8", "model.attention.window = 6"]),
        ({"budget__amount": 5}, ["budget.amount = 5", "window_stages", "5 steps"]),
        ({f"{SCALING}factor": 2.0}, ["scaling.factor = 2", "must be 4", "data.length = 16"]),
        ({f"{SCALING}kind": "dynamic"}, ["follow = 'window'", "'dynamic'", "yarn"]),
        ({"model__attention__window_stages": ()}, ["follow = 'window'", "no effect"]),
    ],
)
def test_refused_naming_field_and_value(make_tiny, changes, words) -> None:
    with pytest.raises(ConfigError) as caught:
        validate.check(make_tiny(**{**GROWING, **changes}))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
