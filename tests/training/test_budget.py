from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from training.step.budget import Budget, Spent
from training.step.schedule import BLOCK, learning_rate, shape


@dataclass(frozen=True)
class Stage:
    steps: int | None
    length: int
    batch_size: int


stages = st.lists(st.builds(Stage, st.integers(1, 20), st.integers(1, 9), st.integers(1, 9)), max_size=3)


@given(stages, st.sampled_from(["steps", "tokens", "flops"]), st.floats(1, 5000))
def test_training_ends_with_the_first_step_that_reaches_the_budget(first, kind, amount) -> None:
    plan = [*first, Stage(None, 5, 3)]
    flops = [100.0 + 10 * i for i in range(len(plan))]
    budget = Budget(kind, amount, plan, flops)
    spent, steps_in, at = Spent(), 0, 0
    while spent.steps < budget.total_steps:
        stage = plan[at]
        used = {"steps": spent.steps, "tokens": spent.tokens, "flops": spent.flops}[kind]
        assert used < amount * (1 + 1e-6), "a step was taken after the budget was spent"
        assert not budget.finished(spent)
        tokens = stage.length * stage.batch_size
        spent = Spent(spent.steps + 1, spent.tokens + tokens, spent.flops + tokens * flops[at])
        steps_in += 1
        if stage.steps == steps_in:
            at, steps_in = at + 1, 0
    used = {"steps": spent.steps, "tokens": spent.tokens, "flops": spent.flops}[kind]
    assert used >= amount * (1 - 1e-6)
    assert budget.finished(spent) and budget.progress(spent) == 1.0


def test_a_budget_in_seconds_has_no_number_of_steps() -> None:
    budget = Budget("seconds", 10.0, [Stage(None, 5, 3)], [1.0])
    assert budget.total_steps is None
    assert not budget.finished(Spent(seconds=9.9)) and budget.finished(Spent(seconds=10.0))


def optimizer(**changes) -> ConfigDict:
    values = dict(learning_rate=1.0, schedule="cosine", warmup_steps=10, decay_share=0.2, final_share=0.1)
    return ConfigDict(values | changes)


@pytest.mark.fault(19)
def test_decay_counts_from_the_first_step_warm_up_included() -> None:
    rate = shape(optimizer(), 10, 100)
    expected = {0: 0.0, 10: 1.0, 55: 0.55, 100: 0.1}
    assert {at: pytest.approx(float(rate(at)), abs=1e-6) for at in expected} == expected


def test_warmup_stable_decay() -> None:
    rate = shape(optimizer(schedule="wsd"), 10, 100)
    expected = {0: 0.0, 5: 0.5, 10: 1.0, 50: 1.0, 80: 1.0, 90: 0.55, 100: 0.1}
    assert {at: pytest.approx(float(rate(at)), abs=1e-6) for at in expected} == expected


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_rates_worked_out_in_blocks_are_each_updates_own(schedule: str) -> None:
    config, total = optimizer(schedule=schedule, warmup_steps=1030), 2 * BLOCK + 5
    rate, alone = learning_rate(config, Budget("steps", total, [Stage(None, 5, 3)], [1.0])), shape(config, 1030, total)
    updates = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 1031, 1500, 2 * BLOCK - 1, 2 * BLOCK, total, 3]
    assert [rate(update, 0.0) for update in updates] == pytest.approx([float(alone(at)) for at in updates], rel=1e-6)


@given(st.sampled_from(["cosine", "wsd", "constant"]), st.integers(0, 30), st.integers(1, 60))
def test_rates_never_leave_0_to_peak_and_the_last_is_the_final_one(schedule, warmup, total) -> None:
    config = optimizer(schedule=schedule, warmup_steps=warmup, learning_rate=0.5)
    rate = learning_rate(config, Budget("steps", total, [Stage(None, 5, 3)], [1.0]))
    rates = [rate(step, step / total) for step in range(1, total + 1)]
    assert all(0 < value <= 0.5 + 1e-7 for value in rates)
    if warmup < total:
        assert rates[-1] == pytest.approx(0.5 if schedule == "constant" else 0.05, rel=1e-4)


def test_a_budget_in_seconds_warms_up_by_updates_and_decays_by_progress() -> None:
    rate = learning_rate(optimizer(), Budget("seconds", 10.0, [Stage(None, 5, 3)], [1.0]))
    assert rate(5, 0.0) == pytest.approx(0.5)
    assert rate(100, 0.5) == pytest.approx(0.55)
    assert rate(100, 1.0) == pytest.approx(0.1)
