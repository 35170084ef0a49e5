"""A run whose budget is raised is to the bit the run that had the larger one from the start, or is refused."""

import numpy as np
import pytest

from configs import provenance
from configs.errors import ConfigError, UserError
from configs.rules import branches as rules
from eval import run as evaluations
from sweeps import launch
from sweeps.store import state
from tests.sweeps.fakes import calls
from tests.sweeps.test_launch import FAKES, sweep_of
from tests.training.test_trainer import parameters, stop_after, trace
from training.loop import trainer
from training.run_directory.files import read_json

CONSTANT = dict(optimizer__schedule="constant")
WSD = dict(optimizer__schedule="wsd", optimizer__decay_share=0.25, optimizer__warmup_steps=2)


def same(one, other) -> bool:
    own, theirs = parameters(one), parameters(other)
    return {*own} == {*theirs} and all(np.array_equal(own[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", ["adamw", "schedule_free_adamw"])
def test_a_lengthened_run_is_the_long_one(make_tiny, tmp_path, kind) -> None:
    made = dict(**CONSTANT, optimizer__kind=kind)
    run, alone = tmp_path / "run", tmp_path / "alone"
    assert trainer.train(make_tiny(**made, budget__amount=6), run, quiet=True)["step"] == 6
    if kind == "adamw":
        evaluations.evaluate(run, ["loss"])
        assert not provenance.problem(run, "loss")
    short = read_json(run / "run.json")
    long = trainer.train(make_tiny(**made, budget__amount=12), run, quiet=True)
    assert (long["status"], long["step"], long["budget"]["amount"]) == ("done", 12, 12)
    trainer.train(make_tiny(**made, budget__amount=12), alone, quiet=True)
    assert trace(run) == trace(alone) and same(run, alone)
    assert [(one["from"], one["to"]) for one in long["lengthened"]] == [(6, 12)]
    assert long["identity"]["run"] == read_json(alone / "run.json")["identity"]["run"] != short["identity"]["run"]
    if kind == "adamw":
        assert "of another config" in provenance.problem(run, "loss"), "of the shorter run"
        again = trainer.train(make_tiny(**made, budget__amount=12), run, quiet=True)
        assert again == long | {"updated": again["updated"]}
        with pytest.raises(UserError, match=r"budget\.amount is 12\.0 there and 6.0 here"):
            trainer.train(make_tiny(**made, budget__amount=6), run, quiet=True)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (dict(optimizer__schedule="cosine", optimizer__warmup_steps=2), r"raised under optimizer\.schedule = 'cosine'"),
        (WSD, r"the decay of optimizer\.schedule = 'wsd' has begun \(100% of the budget is spent\); .*'branch'"),
        (dict(**CONSTANT, optimizer__warmup_steps=9), "warmup_steps = 9 was cut to it"),
    ],
)
def test_a_schedule_that_depends_on_the_budget_is_refused_with_the_reason(make_tiny, tmp_path, made, says) -> None:
    run = tmp_path / "run"
    trainer.train(make_tiny(**made, budget__amount=4), run, quiet=True)
    before = read_json(run / "config.json")
    with pytest.raises(UserError, match=says):
        trainer.train(make_tiny(**made, budget__amount=8), run, quiet=True)
    assert read_json(run / "config.json") == before and read_json(run / "run.json")["status"] == "done"


def test_before_its_decay_wsd_is_lengthened_too(make_tiny, tmp_path, monkeypatch) -> None:
    run, alone = tmp_path / "run", tmp_path / "alone"
    with monkeypatch.context() as patch:
        stop_after(patch, 5)  # of 8, and the decay begins at 6
        assert trainer.train(make_tiny(**WSD, budget__amount=8), run, quiet=True)["status"] == "preempted"
    trainer.train(make_tiny(**WSD, budget__amount=12), run, quiet=True)
    trainer.train(make_tiny(**WSD, budget__amount=12), alone, quiet=True)
    assert trace(run) == trace(alone) and same(run, alone)


def test_a_sweep_is_lengthened_by_its_file(tmp_path) -> None:
    out = tmp_path / "out"
    made = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 2}
    assert launch.launch(sweep_of(tmp_path, ["a"], **made, **{"budget.amount": 10}), out, functions=FAKES).code == 0
    longer = sweep_of(tmp_path, ["a"], **made, **{"budget.amount": 20})
    assert launch.launch(longer, out, functions=FAKES).code == 0
    run = read_json(out / "runs/a/seed0/run.json")
    assert run["budget"]["amount"] == 20 and [what for what, _ in calls(out)].count("train") == 2
    assert launch.launch(longer, out, functions=FAKES).code == 0
    assert [what for what, _ in calls(out)].count("train") == 2, "it is done"
    with pytest.raises(ConfigError, match=r"budget\.amount was 20.0, now 10.0\. Give"):
        launch.launch(sweep_of(tmp_path, ["a"], **made, **{"budget.amount": 10}), out, functions=FAKES)


def test_a_sweep_under_cosine_is_not(tmp_path) -> None:
    out = tmp_path / "out"
    assert launch.launch(sweep_of(tmp_path, ["a"], **{"budget.amount": 10}), out, functions=FAKES).code == 0
    with pytest.raises(ConfigError, match=r"a \(seed 0\): .*was 10.0, now 20.0: .* optimizer\.schedule = 'cosine'"):
        launch.launch(sweep_of(tmp_path, ["a"], **{"budget.amount": 20}), out, functions=FAKES)
    assert state.run_states(out)["a/seed0"].status == "done"


def test_the_share_that_is_spent_decides_under_wsd() -> None:
    before = {
        "optimizer.schedule": "wsd", "optimizer.decay_share": 0.25, "optimizer.warmup_steps": 2,
        "budget.amount": 100.0, "budget.kind": "steps",
    }  # fmt: skip
    assert not rules.not_longer(before, 0.75) and rules.not_longer(before, 0.76)
