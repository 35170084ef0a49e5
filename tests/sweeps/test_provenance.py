"""The launcher takes no result for this run's that is of another step, another question, or another parent."""

import json
from pathlib import Path

import pytest

from configs import fields, provenance
from configs.errors import ConfigError, UserError
from sweeps.execution import worker
from sweeps.spec import expand, select
from sweeps.store import run_status, state
from tests.sweeps import fakes
from tests.sweeps.test_launch import run, status, sweep_of


def result(tmp_path, name="loss", key="a/seed0"):
    return tmp_path / "out/runs" / key / "eval" / f"{name}.json"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"step": 292, "loss": 3.225}, "to be evaluated again: loss.json is of step 292, the run is at step 25"),
        ({"of": {"run": "0" * 32}}, "loss.json is of another config"),
        ({"step": 25, "settings": {"tokens": 7}}, "loss.json asks another question: eval.tokens = 7 there"),
        (None, "loss.json cannot be read"),
    ],
)
def test_a_result_of_something_else_is_not_done_and_evaluated_again(tmp_path, content, why):
    sweep = sweep_of(tmp_path, ["a"], **{"budget.amount": 25.0})
    assert run(tmp_path, sweep).code == 0
    good = result(tmp_path).read_text()
    result(tmp_path).write_text("{" if content is None else json.dumps(content))
    stands = status(tmp_path, "a/seed0")
    assert stands.missing == ("loss",) and why in stands.note and not stands.complete
    assert run(tmp_path, sweep).code == 0
    assert status(tmp_path, "a/seed0").complete and json.loads(result(tmp_path).read_text())["eval"] == "loss" != good
    assert fakes.calls(tmp_path / "out") == [("train", "a/seed0"), ("loss", "a/seed0"), ("loss", "a/seed0")]


def test_a_result_of_this_step_is_left_as_it_is(tmp_path):
    sweep = sweep_of(tmp_path, ["a"], **{"budget.amount": 25.0})
    assert run(tmp_path, sweep).code == 0
    result(tmp_path).write_text(json.dumps({"step": 25, "settings": {"batch_size": 3}}))
    assert run(tmp_path, sweep).code == 0
    assert fakes.calls(tmp_path / "out") == [("train", "a/seed0"), ("loss", "a/seed0")]


def test_a_hyperparameter_is_not_chosen_by_a_result_of_another_step(tmp_path):
    workdir = tmp_path / "runs/a@learning_rate=0.001/seed9"
    (workdir / "eval").mkdir(parents=True)
    (workdir / "run.json").write_text(json.dumps({"status": "done", "step": 100}))
    choice = select.of({"field": "optimizer.learning_rate", "values": [1e-3], "seeds": [9]})
    for step, known in ((100, True), (99, False)):
        (workdir / "eval/loss.json").write_text(json.dumps({"step": step, "loss": 1.5}))
        assert (select.read(tmp_path, choice, "a") is not None) is known


def chain(tmp_path, steps):
    """A parent, and a child that continues it."""
    given = dict(
        name="chain",
        base="configs/tiny.py",
        axes=[{"chain": [{"budget.amount": steps}, {"budget.amount": 41.0, "init_from": "arm:base"}]}],
        arm=lambda c: "tuned" if c.init_from else "base",
        seeds=[0],
        evals=["loss"],
    )
    return expand.expand(given, file=tmp_path / "chain.py")


def begun(tmp_path):
    """Both are trained, and the child's run.json says by what it began, as the trainer has it."""
    assert run(tmp_path, chain(tmp_path, 30.0)).code == 0
    base, tuned = (tmp_path / "out/runs" / arm / "seed0" for arm in ("base", "tuned"))
    info = json.loads((tuned / "run.json").read_text())
    config = json.loads((tuned / "config.json").read_text())
    info["identity"] = provenance.identity(config, provenance.parents_of(base, 30))
    (tuned / "run.json").write_text(json.dumps(info))
    return base, tuned


def test_a_child_of_a_parent_that_was_edited_is_refused_by_the_parents_name(tmp_path):
    base, tuned = begun(tmp_path)
    assert run(tmp_path, chain(tmp_path, 30.0)).code == 0
    message = (
        r"runs/tuned \(seed 0\): started from base/seed0, which has changed since: budget.amount was 30.0, is now 3"
    )
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, chain(tmp_path, 300.0))
    for path in sorted(base.rglob("*"), reverse=True):  # as was advised for the parent alone
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, chain(tmp_path, 300.0))
    for path in sorted(tuned.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert run(tmp_path, chain(tmp_path, 300.0)).code == 0
    assert json.loads((tuned / "run.json").read_text())["step"] == 41


def test_a_child_whose_parent_was_trained_otherwise_meanwhile_is_failed_and_not_evaluated(tmp_path):
    base, tuned = begun(tmp_path)
    info = json.loads((base / "run.json").read_text())
    (base / "run.json").write_text(json.dumps(info | {"step": 31}))
    stands = run_status.read(tuned, ["loss"])
    assert stands.status == "failed" and "started from base/seed0" in stands.error
    assert stands.error.endswith("it was at step 30, is now at 31")


def test_dropped_seeds_are_told_as_dropped_arms_are(tmp_path, capsys):
    run(tmp_path, sweep_of(tmp_path, ["a", "b"], seeds=(0, 1, 2)))
    change = state.take_up(tmp_path / "out", sweep_of(tmp_path, ["a"], seeds=(1,)), "now")
    assert change.dropped == ("b", "a (seed 0, 2)")
    assert run(tmp_path, sweep_of(tmp_path, ["a"], seeds=(2,))).code == 0
    assert "no longer in the sweep file, their runs stay: a (seed 1)" in capsys.readouterr().out


def test_a_sweep_json_that_is_replaced_under_the_launcher_stops_it(tmp_path, monkeypatch, capsys):
    sweep = sweep_of(tmp_path, ["a", "b", "c"])
    real, seen = state.Written.replaced, []

    def replaced(self):
        if not seen:
            seen.append(1)
            self.path.write_text(self.path.read_text().replace('"name": "test"', '"name": "other"'))
        return real(self)

    monkeypatch.setattr(state.Written, "replaced", replaced)
    summary = run(tmp_path, sweep, workers=1)
    assert summary.code == 1 and summary.replaced
    said = capsys.readouterr().out
    assert "was replaced by another process: no more runs start" in said and "sweep.json was replaced" in said
    assert json.loads((tmp_path / "out/sweep.json").read_text())["name"] == "other"  # and is left as it is
    assert len(fakes.calls(tmp_path / "out")) < 6


def test_a_sweep_json_that_was_only_touched_is_the_same(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    written = state.Written(Path(tmp_path))
    (tmp_path / "sweep.json").touch()
    assert not written.replaced()
    (tmp_path / "sweep.json").write_text("[]")
    assert written.replaced()
    written.take()
    assert not written.replaced()
    (tmp_path / "sweep.json").unlink()
    assert written.replaced()


def stopped(tmp_path, sweep, step=10):
    """A run that was stopped and then evaluated as it stood."""
    (one,) = sweep.runs()
    workdir = state.run_dir(tmp_path / "out", one.arm, one.seed)
    (workdir / "eval").mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(fields.to_dict(one.config)))
    (workdir / "run.json").write_text(json.dumps({"status": "preempted", "step": step, "error": "stopped by SIGTERM"}))
    (workdir / "eval/loss.json").write_text(json.dumps({"step": step, "loss": 3.225}))
    return workdir


def test_a_run_that_was_evaluated_before_its_end_is_evaluated_at_its_end_by_one_launch(tmp_path):
    sweep = sweep_of(tmp_path, ["a"], **{"budget.amount": 25.0})
    stopped(tmp_path, sweep)
    assert run(tmp_path, sweep).code == 0
    assert fakes.calls(tmp_path / "out") == [("train", "a/seed0"), ("loss", "a/seed0")]
    assert "3.225" not in result(tmp_path).read_text() and status(tmp_path, "a/seed0").complete


@pytest.mark.parametrize("before", ["preempted", "failed"])
def test_a_run_that_is_refused_says_why_and_not_why_it_was_stopped_before(tmp_path, monkeypatch, before):
    workdir = stopped(tmp_path, sweep_of(tmp_path, ["a"]))
    (workdir / "run.json").write_text(json.dumps({"status": before, "step": 10, "error": "stopped by SIGTERM"}))

    def refuse(config, path):
        raise UserError("was trained on other data")

    monkeypatch.setattr(worker, "function", lambda name: refuse)
    config = json.loads((workdir / "config.json").read_text())
    ended = worker.work(worker.Job(str(tmp_path / "out"), "s", "a", 0, config, ("loss",)))
    assert (ended.status, ended.error) == ("failed", "UserError: was trained on other data")
    stands = run_status.read(workdir, ["loss"])
    assert stands.status == "failed" and "was trained on other data" in stands.error


@pytest.mark.parametrize(("step", "looked"), [(25, (1,)), (24, ())])
def test_seeds_were_looked_at_only_by_a_result_of_the_run_as_it_stands(tmp_path, step, looked):
    sweep = sweep_of(tmp_path, ["a"], seeds=(0,), **{"budget.amount": 25.0})
    assert run(tmp_path, sweep).code == 0
    result(tmp_path).write_text(json.dumps(json.loads(result(tmp_path).read_text()) | {"step": step}))
    expanded = sweep_of(tmp_path, ["a"], seeds=(0, 1), **{"budget.amount": 25.0})
    assert state.continued(tmp_path / "out", expanded).studies[0].looked == looked


def test_fields_of_configs_are_what_identities_are_made_of(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "b"])
    hashes = {provenance.run_hash(fields.to_dict(one.config)) for one in sweep.runs()}
    assert len(hashes) == 2
