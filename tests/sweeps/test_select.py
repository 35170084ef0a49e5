"""A hyperparameter chosen for each arm: by whose losses, in which order, through stops, and what is refused."""

import json
import math
from pathlib import Path

import pytest

from configs import fields
from sweeps import launch
from sweeps.execution.driver import Functions
from sweeps.spec import expand, select
from sweeps.store import state
from tests.sweeps import fakes
from tests.sweeps.test_expand import refused, sweep
from training.run_directory.files import write_json

SELECT = dict(field="optimizer.learning_rate", values=[0.01, 0.001, 0.1], seeds=[7, 8])
TWO = dict(axes=[{"model.num_kv_heads": [1, 4]}], arm="kv{model.num_kv_heads}", seeds=[0, 1], select=SELECT)
BEST = {"kv1": 0.01, "kv4": 0.1}


def train(config, workdir):
    """Trains as well as the learning rate is near the arm's best; 0.001 diverges with one seed of kv1."""
    fakes.note(workdir, "train")
    workdir = Path(workdir)
    rate, arm = config.optimizer.learning_rate, config.name.split("@")[0]
    write_json(workdir / "config.json", fields.to_dict(config))
    ends = fakes.run_json(config, status="done", val_loss=abs(math.log10(rate / BEST[arm])))
    if arm == "kv1" and rate == 0.001 and config.seed == 8:
        ends |= {"status": "diverged", "error": "the loss is nan"}
    write_json(workdir / "run.json", ends)


def evaluate(workdir, evals):
    workdir = Path(workdir)
    fakes.note(workdir, evals[0])
    loss = json.loads((workdir / "run.json").read_text())["val_loss"]
    if (workdir.parents[2] / "broken").exists() and "kv4@" in str(workdir):
        raise ValueError("cannot be measured")
    write_json(workdir / "eval" / f"{evals[0]}.json", {"eval": evals[0], "loss": loss})


def run(directory, **changed):
    functions = Functions("tests.sweeps.test_select:train", "tests.sweeps.test_select:evaluate")
    return launch.launch(sweep(**TWO | changed), directory, workers=1, functions=functions)


def rates(directory):
    results = {}
    for arm in ("kv1", "kv4"):
        for path in (directory / "runs" / arm).glob("seed*/config.json"):
            results[arm, path.parent.name] = json.loads(path.read_text())["optimizer"]["learning_rate"]
    return results


def test_every_arm_is_tried_with_every_value_first_and_reported_with_its_own_best(tmp_path, capsys):
    (tmp_path / "broken").write_text("")
    first = run(tmp_path)
    # What cannot be measured keeps only its own arm from beginning, and is named.
    assert first.code == 1
    assert first.failed["kv4/seed0"] == (
        "not started: kv4@learning_rate=0.001/seed7, by which its optimizer.learning_rate is chosen, is not evaluated"
    )
    assert rates(tmp_path) == {("kv1", "seed0"): 0.01, ("kv1", "seed1"): 0.01}
    (tmp_path / "broken").unlink()
    assert run(tmp_path).code == 0
    assert rates(tmp_path) == {(arm, f"seed{k}"): rate for arm, rate in BEST.items() for k in (0, 1)}
    order = [key for what, key in fakes.calls(tmp_path) if what == "train"]
    assert len(order) == len(set(order)) == 2 * 3 * 2 + 2 * 2, "the second launch trained what was there"
    for arm in BEST:
        tried = [i for i, key in enumerate(order) if key.startswith(f"{arm}@")]
        assert len(tried) == 6 and max(tried) < min(i for i, key in enumerate(order) if key.startswith(f"{arm}/"))
    message = capsys.readouterr().out + capsys.readouterr().err
    written = json.loads((tmp_path / "sweep.json").read_text())
    trials, study = written["studies"]
    assert trials["selects_for"] == study["name"] and trials["seeds"] == [7, 8]
    choices = study["select"]["choices"]
    # One seed of kv1 diverged with 0.001, which is out although the other did well; so 0.01 is no edge.
    assert choices["kv1"] == {"value": 0.01, "losses": [[0.001, None], [0.01, 0.0], [0.1, 1.0]], "edge": ""}
    assert choices["kv4"]["value"] == 0.1 and choices["kv4"]["edge"] == "highest"
    assert [arm["config"]["optimizer"]["learning_rate"] for arm in study["arms"]] == [0.01, 0.1]
    assert "kv4: optimizer.learning_rate = 0.1 chosen of 3 values on seeds 7, 8, the highest tried" in message

    # A grid that goes on gives another choice, which the runs on disk contradict: they are refused, not overwritten.
    wider = TWO | {"select": SELECT | {"values": [0.001, 0.01, 0.1, 1.0]}}
    BEST["kv4"] = 1.0
    try:
        for seed in (7, 8):
            for value in (0.1, 1.0):
                write_json(tmp_path / f"runs/kv4@learning_rate={value}/seed{seed}/run.json", {"status": "done"})
                write_json(tmp_path / f"runs/kv4@learning_rate={value}/seed{seed}/eval/loss.json", {"loss": 1 - value})
                write_json(tmp_path / f"runs/kv1@learning_rate={value}/seed{seed}/eval/loss.json", {"loss": value})
        problems = state.contradictions(tmp_path, sweep(**wider).runs())
    finally:
        BEST["kv4"] = 0.1
    assert len(problems) == 1 and problems[0].startswith("runs/kv4 (seed 0, 1): on disk with another config: ")
    assert "optimizer.learning_rate was 0.1, now 1.0" in problems[0]


def test_an_arm_whose_every_value_diverges_is_named_and_no_run_of_it_begins(tmp_path):
    choice = select.choose(select.of(SELECT), "a", lambda key: math.inf)
    assert choice.value is None and choice.edge == ""
    assert choice.described()["losses"] == [[0.001, None], [0.01, None], [0.1, None]]
    expanded = sweep(**TWO)
    for run in expanded.runs():
        if "kv1@" in run.arm:
            write_json(state.run_dir(tmp_path, run.arm, run.seed) / "run.json", {"status": "diverged"})
    last = next(run for run in expanded.runs() if run.arm == "kv1")
    assert "every tried optimizer.learning_rate" in select.unrunnable(tmp_path, last)


def test_the_mean_over_selection_seeds_decides_and_nothing_before_all_are_there():
    chosen = select.of(SELECT)
    losses = {"a@learning_rate=0.001/seed7": 1.0, "a@learning_rate=0.001/seed8": 3.0}
    losses |= {"a@learning_rate=0.01/seed7": 1.9, "a@learning_rate=0.01/seed8": 1.9}
    losses |= {"a@learning_rate=0.1/seed7": 0.5}
    assert select.choose(chosen, "a", losses.get) is None
    losses["a@learning_rate=0.1/seed8"] = 3.4
    choice = select.choose(chosen, "a", losses.get)
    assert choice.losses == {0.001: 2.0, 0.01: 1.9, 0.1: 1.95}
    assert (choice.value, choice.edge) == (0.01, "")


@pytest.mark.parametrize("changed, message", [
    ({"seeds": [1, 7]}, "select.seeds: 1 is also one of `seeds`"),
    ({"field": "model.num_heads"}, "select.field = 'model.num_heads': must be a number of `optimizer`"),
    ({"field": "optimizer.learning_rat"}, "did you mean optimizer.learning_rate"),
    ({"values": [0.1]}, "select.values = [0.1]: must be a list of at least two values"),
    ({"values": [0.1, 0.1]}, "lists a value twice"),
    ({"values": [0.1, "x"]}, "optimizer.learning_rate = 'x': must be a number"),
    ({"values": [0.1, -1.0]}, "arm kv1@learning_rate=-1.0: optimizer.learning_rate = -1.0: must be above 0"),
    ({"by": 3}, "select: unknown key 'by'"),
])  # fmt: skip
def test_what_cannot_be_chosen_is_refused(changed, message):
    problems = refused(**TWO | {"select": SELECT | changed})
    assert message in problems[0], problems


def test_the_field_is_set_nowhere_else_and_the_loss_is_measured():
    both = TWO | {"axes": [{"model.num_kv_heads": [1, 4], "optimizer.learning_rate": [0.1, 0.2]}], "arm": None}
    assert "is already an axis" in refused(**both)[0]
    assert "must contain 'loss', by which `select` chooses" in refused(**TWO, evals=["memory"])[0]
    with pytest.raises(Exception, match="is already given on the command line"):
        expand.expand({"base": "configs/tiny.py", **TWO}, file=Path("s.py"), overrides={"optimizer.learning_rate": 1.0})


def test_trials_are_scored_on_other_text_than_the_arms_they_choose_for(tmp_path):
    trials, study = sweep(**TWO).studies
    assert {arm.config.eval.split for arm in trials.arms} == {"selection"}
    assert {arm.config.eval.split for arm in study.arms} == {"test"}
    plain = sweep(**{key: value for key, value in TWO.items() if key != "select"})
    assert {arm.config.eval.split for arm in plain.studies[0].arms} == {"validation"}
    recall = sweep(**TWO, fixed={"data.weights.text": 0.0, "data.weights.mqar": 1.0})
    assert {arm.config.eval.split for one in recall.studies for arm in one.arms} == {"validation"}
    # A run that was made before there was such a split keeps what it was scored on, and is not refused.
    run = next(run for run in study_runs(sweep(**TWO)))
    written = fields.to_dict(run.config)
    assert state.differences(written, run.config) == []
    written["eval"]["split"] = "validation"
    assert state.differences(written, run.config) == ["eval.split was 'validation', now 'test'"]
    del written["eval"]["split"]
    assert state.differences(written, run.config) == []


def study_runs(expanded):
    return [run for run in expanded.runs() if run.select is not None]
