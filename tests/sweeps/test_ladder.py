"""Ladders, conditions and leave-one-out in a sweep file: which runs they ask for, and what is refused."""

import json
from pathlib import Path

import pytest

from configs.errors import ConfigError
from models import counting
from sweeps.spec import axes, expand, where
from sweeps.store import state
from tests.sweeps.test_expand import refused, sweep

HEADS = [{"model.num_heads": [1, 2]}]
STEPS = dict(by="budget.amount", values=[40, 10, 20])
WSD = {"optimizer.schedule": "wsd", "optimizer.warmup_steps": 2}


def test_a_ladder_by_budget_has_every_arm_at_every_rung():
    result = sweep(axes=HEADS, ladder=STEPS, evals=["loss", "retrieval", "throughput"], baseline="num_heads=1")
    assert [study.rung for study in result.studies] == [10, 20, 40]
    low, _, top = result.studies
    assert [arm.name for arm in top.arms] == ["num_heads=1", "num_heads=2"] and top.rung_of == ""
    assert [arm.name for arm in low.arms] == ["num_heads=1@amount=10", "num_heads=2@amount=10"]
    assert low.rung_of == top.name and [arm.rung_of for arm in low.arms] == ["num_heads=1", "num_heads=2"]
    assert [arm.config.budget.amount for arm in (*low.arms, *top.arms)] == [10, 10, 40, 40]
    assert low.evals == ("loss", "throughput") and low.baseline is None and top.baseline == "num_heads=1"
    described = state.describe(result, created="", updated="")["studies"]
    assert described[0]["ladder"]["values"] == [10.0, 20.0, 40.0] and described[0]["rung"] == 10
    assert json.loads(json.dumps(described)) == described


def test_each_rung_has_a_selection_of_its_own():
    select = dict(field="optimizer.learning_rate", values=[1e-3, 1e-2], seeds=[9])
    result = sweep(axes=HEADS, ladder=STEPS, select=select)
    tried = [arm.name for study in result.studies if study.selects_for for arm in study.arms]
    assert len(tried) == 3 * 2 * 2 and "num_heads=1@amount=10@learning_rate=0.001" in tried


def test_branches_continue_the_highest_rung_and_its_choice():
    select = dict(field="optimizer.learning_rate", values=[1e-3, 1e-2], seeds=[9])
    result = sweep(axes=HEADS, ladder=STEPS | {"branches": True}, fixed=WSD, select=select)
    (low,) = [study for study in result.studies if study.rung == 10]
    (top,) = [study for study in result.studies if study.rung == 40]
    assert tuple(top.arms[0].config.checkpoint.branches) == (10, 20) and top.arms[0].config.init_from == ""
    assert low.arms[0].config.init_from == "arm:num_heads=1" and low.arms[0].config.init_state == "branch"
    assert len([study for study in result.studies if study.selects_for]) == 1
    (run,) = [run for run in result.runs() if run.arm == "num_heads=1@amount=10"]
    assert run.select.keys(run.arm) == [f"num_heads=1@learning_rate={v}/seed9" for v in (0.001, 0.01)]


def test_a_ladder_by_size_trains_on_tokens_a_parameter():
    ladder = dict(by="model.width", values=[16, 32], tokens_per_parameter=2)
    result = sweep(fixed={"model.vocab_size": 256, "model.num_heads": 2}, ladder=ladder)
    for study in result.studies:
        (arm,) = study.arms
        assert arm.config.budget.kind == "tokens" and arm.config.model.width == study.rung
        assert arm.config.model.head_dim == study.rung / 2  # resolved at its own width
        assert arm.config.budget.amount == 2 * counting.parameters(arm.config.model)["total"]


@pytest.mark.parametrize(
    "given, says",
    [
        (dict(ladder=5), "ladder = 5: must be dict(by=, values=)"),
        (dict(ladder=dict(by="budget.amount")), "ladder.values: is missing"),
        (dict(ladder=STEPS | {"step": 1}), "ladder: unknown key 'step'"),
        (dict(ladder=STEPS | {"by": "data.length"}), "ladder.by = 'data.length': must be budget.amount"),
        (dict(ladder=STEPS | {"values": [10]}), "must be a list of at least two values"),
        (dict(ladder=STEPS | {"values": [10, 10.0]}), "lists a value twice"),
        (dict(ladder=STEPS | {"values": [10, -1]}), "-1 must be above 0"),
        (dict(ladder=STEPS, fixed={"budget.amount": 7}), "budget.amount is also in `fixed`"),
        (dict(ladder=STEPS, axes=[{"budget.amount": [5, 6]}]), "ladder.by = 'budget.amount': is already an axis"),
        (dict(ladder=STEPS, evals=["throughput"]), "evals must contain 'loss'"),
        (dict(ladder=STEPS | {"branches": True}), "branches need wsd"),
        (dict(ladder=STEPS | {"branches": True}, fixed=WSD | {"budget.kind": "seconds"}), "so no branches"),
        (dict(ladder=dict(by="model.width", values=[16, 32])), "a ladder by size needs a number above 0"),
        (dict(ladder=STEPS | {"tokens_per_parameter": 2}), "is for a ladder by size"),
    ],
)
def test_what_a_ladder_cannot_be_is_said(given, says):
    assert any(says in problem for problem in refused(**given)), refused(**given)


def test_an_override_of_the_ladders_field_is_refused():
    with pytest.raises(ConfigError, match=r"budget\.amount: is the ladder's of"):
        expand.expand(
            {"name": "s", "base": "configs/tiny.py", "ladder": STEPS}, file=Path("s.py"), overrides={"budget.amount": 3}
        )


def test_leave_one_out_has_the_whole_and_each_feature_taken_away():
    features = [{"model.attention.qk_norm": [True, False]}, {"model.mlp": ["swiglu", "gelu", "relu"]}]
    axis = {"leave_one_out": features}
    result = axes.assignments(axis)
    assert axes.check(axis, "axes") == [] and axes.count(axis) == len(result) == 4
    assert [tuple(one.values()) for one in result] == [
        (True, "swiglu"), (False, "swiglu"), (True, "gelu"), (True, "relu"),
    ]  # fmt: skip
    pair = {"zip": [{"model.norm": ["layernorm", "rmsnorm"]}, {"model.norm_bias": [True, False]}]}
    assert len(axes.assignments({"leave_one_out": [*features, pair]})) == 5
    (problem,) = axes.check({"leave_one_out": [{"model.mlp": "gelu"}, features[0]]}, "axes")
    assert "has one choice; must have two, with and without" in problem


CONDITION = "model.num_heads * 16 <= model.width and not model.mlp == 'gelu' or model.num_heads in (7, -1)"


@pytest.mark.parametrize("condition", [CONDITION, lambda c: c.model.num_heads <= 2 and c.model.mlp != "gelu"])
def test_where_keeps_what_the_condition_holds_for(condition):
    given = dict(axes=[{"model.num_heads": [1, 2, 4], "model.mlp": ["swiglu", "gelu"]}], fixed={"model.width": 32})
    result = sweep(**given, where=condition)
    assert [arm.name for arm in result.studies[0].arms] == ["num_heads=1,mlp=swiglu", "num_heads=2,mlp=swiglu"]
    assert len(sweep(**given).studies[0].arms) == 6


def test_where_leaves_out_what_would_be_refused():
    result = sweep(
        axes=[{"model.num_heads": [4, 3]}], fixed={"model.width": 32}, where="model.width % model.num_heads == 0"
    )
    assert [arm.name for arm in result.studies[0].arms] == ["num_heads=4"]


@pytest.mark.parametrize(
    "condition, says",
    [
        ("model.num_head > 1", "unknown field model.num_head"),
        ("__import__('os').system('true')", "is not allowed in a condition"),
        ("model.width ** 99", "is not allowed in a condition"),
        ("(lambda: 1)()", "is not allowed in a condition"),
        ("[x for x in (1,)]", "is not allowed in a condition"),
        ("model.width.__class__", "unknown field model.width.__class__"),
        ("model.width >", "invalid syntax"),
        ("", "must be a condition as text"),
        (7, "must be a condition as text"),
        ("model.num_heads > 99", "excludes all 2 combinations"),
        ("model.num_heads", "returned 1, must return True or False"),
        ("model.vocab_size > 1", "TypeError"),
        (lambda c: c.model.nothing, "AttributeError"),
    ],
)
def test_conditions_that_are_none_are_refused(condition, says):
    problems = refused(axes=HEADS, where=condition)
    assert any(says in problem for problem in problems), problems
    assert where.check("model.width // 2 in [8, 16] and 1 < model.num_layers < 9", "where") == []
