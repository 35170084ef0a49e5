"""Budgets in tokens, FLOPs and wall time as runs keep them: stopped and resumed, and shared by arms that differ."""

import time

import pytest

from tests.training.test_trainer import stop_after, trace
from training.loop import after_step, trainer
from training.run_directory.files import read_lines


def flops_for(tiny, steps, **changes):
    """Returns the FLOPs of some steps less a little, counted from an arm's own run.json."""
    from configs import validate
    from models import counting

    config = validate.resolve(tiny(model__vocab_size=30, **changes))
    return counting.flops_per_token(config.model, 16)["value"] * 64 * (steps - 0.5)


@pytest.mark.parametrize("kind", ["tokens", "flops"])
def test_a_budget_is_spent_once_however_often_the_run_is_stopped(tiny, tmp_path, monkeypatch, kind) -> None:
    amount = 8 * 64 - 10 if kind == "tokens" else flops_for(tiny, 8)
    config = tiny(model__vocab_size=30, budget__kind=kind, budget__amount=amount, eval__every_steps=0)
    whole = trainer.train(config, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert trainer.train(config, tmp_path / "parts", quiet=True)["status"] == "preempted"
    parts = trainer.train(config, tmp_path / "parts", quiet=True)
    assert parts["status"] == "done" and parts["step"] == whole["step"] == 8
    for key in ("tokens", "flops"):
        assert parts[key] == whole[key]
    assert parts["tokens"] == 8 * 64 and parts[kind] >= amount > parts[kind] * 7 / 8
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")
    rates = [line["learning_rate"] for line in trace(tmp_path / "parts")]
    assert rates[-1] == pytest.approx(1e-3, rel=1e-3), "the schedule must end with the budget: a tenth of the peak"


def test_a_budget_of_seconds_goes_on_where_the_stopped_run_left_it(tiny, tmp_path, monkeypatch) -> None:
    config = tiny(
        model__vocab_size=30, budget__kind="seconds", budget__amount=1.0, checkpoint__every_steps=0, log__every_steps=1
    )
    spend = after_step.spend
    # Every step takes a tenth of a second by the run's own clock, whatever else this machine does.
    monkeypatch.setattr(after_step, "spend", lambda run, tokens, seconds: spend(run, tokens, 0.1))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        first = trainer.train(config, tmp_path, quiet=True)
    assert first["status"] == "preempted" and first["step"] == 4 and 0.4 <= first["wall_time"]["train"] < 1.0
    time.sleep(1.1)  # time between the parts is nobody's
    last = trainer.train(config, tmp_path, quiet=True)
    assert last["status"] == "done" and 4 < last["step"] <= 10
    assert 1.0 <= last["wall_time"]["train"] < 2.0
    rates = [line["learning_rate"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert rates[-1] < 0.3 * max(rates) and rates.index(max(rates)) < len(rates) - 1, "it must decay with the seconds"


def test_arms_that_cost_unlike_spend_the_same_flops(tiny, tmp_path) -> None:
    amount = flops_for(tiny, 6)
    results = {}
    for width in (None, 320):
        changed = {} if width is None else {"model__mlp_width": width}
        config = tiny(model__vocab_size=30, budget__kind="flops", budget__amount=amount, eval__every_steps=0, **changed)
        results[width] = trainer.train(config, tmp_path / str(width), quiet=True)
    thin, wide = results[None], results[320]
    assert thin["step"] > wide["step"] and thin["tokens"] > wide["tokens"]
    for run in results.values():
        assert amount <= run["flops"] < amount + run["flops"] / run["step"], "no step beyond the one that spends it"
