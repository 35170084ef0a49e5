"""Seeds added look by look: until when, by which levels, through stops, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from configs import fields
from sweeps import launch, status
from sweeps.execution.driver import Functions
from sweeps.spec import looks
from sweeps.store import state
from tests.sweeps import fakes
from tests.sweeps.test_expand import refused, sweep
from training.run_directory.files import write_json

PLAN = dict(looks=(3, 6, 12), care=0.02)
GAPS = {"kv1": 0.0, "kv2": 1.0, "kv4": 0.0}  # nats above the baseline kv1
NOISE = {"kv1": 0.0, "kv2": 0.01, "kv4": 0.03}  # deviation between seeds


def train(config, workdir):
    fakes.note(workdir, "train")
    workdir = Path(workdir)
    write_json(workdir / "config.json", fields.to_dict(config))
    ends = {"status": "done", "val_loss": 1.0}
    if (workdir.parents[2] / "broken").exists() and config.seed == 4:
        ends = {"status": "failed", "error": "no such luck"}
    write_json(workdir / "run.json", fakes.run_json(config, **ends))


def evaluate(workdir, evals):
    workdir = Path(workdir)
    fakes.note(workdir, evals[0])
    arm, seed = workdir.parent.name, int(workdir.name.removeprefix("seed"))
    noise = np.random.default_rng([seed, len(arm), int(arm[2:])]).normal(0, 1)
    loss = 2.0 + 0.1 * seed + GAPS[arm] + NOISE[arm] * noise
    write_json(workdir / "eval" / f"{evals[0]}.json", {"eval": evals[0], "loss": loss})


def run(directory, axis=(1, 2), **changed):
    given = dict(axes=[{"model.num_kv_heads": list(axis)}], arm="kv{model.num_kv_heads}", baseline="kv1", seeds=PLAN)
    functions = Functions("tests.sweeps.test_looks:train", "tests.sweeps.test_looks:evaluate")
    return launch.launch(sweep(**given | changed), directory, workers=1, functions=functions)


def seeds(directory):
    return state.read(directory)["studies"][0]["seeds"]


def test_a_large_difference_is_decided_at_the_first_look(tmp_path, capsys):
    assert run(tmp_path).code == 0
    assert seeds(tmp_path) == [0, 1, 2]
    assert "after look 1 of 3, 3 seeds: every comparison is decided" in capsys.readouterr().out
    assert state.read(tmp_path)["studies"][0]["plan"] == {"looks": [3, 6, 12], "care": 0.02}


def test_seeds_are_added_while_a_comparison_is_open_and_status_says_where_it_stands(tmp_path, capsys):
    assert run(tmp_path, (1, 2, 4), seeds=dict(looks=(3, 6, 12), care=0.04)).code == 0
    said = capsys.readouterr().out
    assert "after look 1 of 3, 3 seeds: open: kv4; continuing to 6 seeds" in said
    reached = len(seeds(tmp_path))
    assert reached in (6, 12)
    trained = [key for what, key in fakes.calls(tmp_path) if what == "train"]
    assert len(trained) == len(set(trained)) == 3 * reached
    status.main([str(tmp_path)])
    assert f"after look {[3, 6, 12].index(reached) + 1} of 3, {reached} seeds: " in capsys.readouterr().out


def test_the_last_look_ends_it_though_something_is_open(tmp_path, capsys):
    assert run(tmp_path, (1, 4), seeds=dict(looks=(2, 3), care=1e-6)).code == 0
    assert seeds(tmp_path) == [0, 1, 2] and "after look 2 of 2, 3 seeds: open: kv4" in capsys.readouterr().out


def test_a_look_waits_for_a_run_that_failed_and_goes_on_where_it_was(tmp_path):
    (tmp_path / "broken").write_text("")
    plan = dict(looks=(3, 6, 12), care=0.0001)
    assert run(tmp_path, (1, 4), seeds=plan).code == 1
    assert seeds(tmp_path) == list(range(6))
    before = fakes.calls(tmp_path)
    (tmp_path / "broken").unlink()
    run(tmp_path, (1, 4), seeds=plan)
    assert seeds(tmp_path) == list(range(12))
    again = [key for what, key in fakes.calls(tmp_path)[len(before) :] if what == "train"]
    assert sorted(again) == sorted([f"kv{arm}/seed{seed}" for arm in (1, 4) for seed in (4, *range(6, 12))]), (
        "the failed run again, and the last look's"
    )


def test_a_list_that_grows_after_results_is_marked_with_its_looks(tmp_path):
    run(tmp_path, seeds=[0, 1])
    assert state.read(tmp_path)["studies"][0]["looked"] == []
    run(tmp_path, seeds=[0, 1])
    assert state.read(tmp_path)["studies"][0]["looked"] == []
    run(tmp_path, seeds=[0, 1, 2])
    run(tmp_path, seeds=[0, 1, 2, 3])
    assert state.read(tmp_path)["studies"][0]["looked"] == [2, 3]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (dict(seeds=dict(looks=(5, 10))), "seeds.care: is missing"),
        (dict(seeds=dict(looks=(5, 10), care=0.1, look=1)), "seeds: unknown key 'look'; did you mean looks?"),
        (dict(seeds=dict(looks=(10, 5), care=0.1)), "looks must be increasing whole numbers of seeds, 2 or more"),
        (dict(seeds=dict(looks=5, care=0.1)), "seeds.looks = 5: must be numbers of seeds"),
        (dict(seeds=dict(looks=(5,), care=0)), "care must be a number above 0, in nats"),
        (dict(seeds=PLAN, evals=["memory"]), "must contain 'loss', by which a plan of seeds decides"),
        (dict(seeds=PLAN, care=0.1), "care: is also set as seeds.care"),
        (dict(care=-1), "care = -1: must be a number above 0, in nats"),
        (
            dict(seeds=PLAN, select=dict(field="optimizer.learning_rate", values=[1e-3, 1e-2], seeds=[11])),
            "select.seeds: 11 is also one of `seeds`",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changed, words):
    assert any(words in line for line in refused(**changed))


def test_what_a_foreign_sweep_json_says_reaches_only_looks_of_the_plan():
    required = sweep(seeds=PLAN)
    name = required.studies[0].name
    for given, expected in [([0] * 7, 6), ("nonsense", 3), ([0] * 500, 12), ([], 3)]:
        again = looks.resumed(required, {"studies": [{"name": name, "seeds": given}]})
        assert again.studies[0].seeds == tuple(range(expected)), given
    assert json.dumps(state.describe(required, "", ""))
