"""Packs: runs of one shape go to one worker, which trains them in one program; everything else is each run's own."""

import json
from dataclasses import replace

import pytest

from configs.errors import UserError
from sweeps import launch
from sweeps.execution import packs
from sweeps.execution.driver import Functions
from sweeps.spec import expand
from sweeps.store import state
from tests.sweeps.test_launch import FAKES, sweep_of

PACKED = replace(FAKES, together="tests.sweeps.fakes:together")


def run(tmp_path, sweep, pack, functions=PACKED):
    return launch.launch(sweep, tmp_path / "out", workers=1, functions=functions, pack=pack)


def calls(tmp_path):
    lines = (tmp_path / "out/calls").read_text().splitlines()
    return [line.split()[0] for line in lines], {line.split()[2] for line in lines}


def test_rates_and_seeds_are_packed_and_every_run_is_evaluated(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "b", "c"], seeds=(0, 1), evals=("loss",))
    assert run(tmp_path, sweep, 4).code == 0
    made, processes = calls(tmp_path)
    assert [what for what in made if "together" in what] == ["together-4", "together-2"]
    assert made.count("train") == made.count("loss") == 6 and len(processes) == 1
    assert all(stands.complete for stands in state.run_states(tmp_path / "out").values())
    assert run(tmp_path, sweep, 4).code == 0 and calls(tmp_path)[0] == made, "nothing is done twice"


def test_one_that_diverges_or_fails_in_a_pack_leaves_the_others_done(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "diverge", "b"])
    run(tmp_path, sweep, 3)
    stands = state.run_states(tmp_path / "out")
    assert [stands[f"{arm}/seed0"].status for arm in ("a", "diverge", "b")] == ["done", "diverged", "done"]


def test_what_fails_together_is_trained_one_by_one(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "apart"])
    assert run(tmp_path, sweep, 2).code == 0
    assert calls(tmp_path)[0] == ["together-2", "train", "train", "loss", "loss"]


def test_a_worker_that_dies_fails_all_of_its_pack_and_each_is_told(tmp_path):
    sweep = sweep_of(tmp_path, ["a", "kill"])
    summary = run(tmp_path, sweep, 2)
    assert summary.code == 1 and set(summary.failed) == {"kill/seed0"}
    assert state.run_states(tmp_path / "out")["a/seed0"].status == "done"


def test_arms_of_other_shapes_are_not_packed(tmp_path):
    given = dict(base="configs/tiny.py", axes=[{"model.num_heads": [1, 2]}], arm="h{model.num_heads}", evals=[])
    assert run(tmp_path, expand.expand(given, file=tmp_path / "s.py"), 4).code == 0
    assert calls(tmp_path)[0] == ["train", "train"]


def test_the_option_is_refused_where_it_cannot_be_kept(tmp_path):
    with pytest.raises(UserError, match="--pack=0: must be 1 or more"):
        packs.check(0, "local", packs=True)
    with pytest.raises(UserError, match="--pack=2: --launcher=slurm gives each run its own process; must be 1"):
        launch.main(["--sweep=x", "--out=y", "--pack=2", "--launcher=slurm"])
    packs.check(1, "ray", packs=False)


def real(tmp_path, arms, seeds, **changed):
    small = {"model.width": 16, "model.num_layers": 1, "data.length": 16, "data.batch_size": 2, "budget.amount": 4,
             "data.split": "first", "eval.every_steps": 0, "eval.multiples": (1,), "eval.bootstrap": 10,
             "log.every_steps": 2, "log.tensorboard": False}  # fmt: skip
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 100)
    path = {"data.path": str(tmp_path / "text.txt")}
    return sweep_of(tmp_path, arms, seeds, **{**small, **path, **changed})


def test_a_sweep_packed_for_real(tmp_path):
    sweep = real(tmp_path, ["a", "b"], (0, 1))
    assert run(tmp_path, sweep, 4, Functions()).code == 0
    losses = set()
    for one in sweep.runs():
        folder = tmp_path / "out/runs" / one.key
        message = json.loads((folder / "run.json").read_text())
        assert (message["status"], message["step"], message["seed"], message["name"]) == ("done", 4, one.seed, one.arm)
        assert len(message["packed_with"]) == 3
        losses.add(json.loads((folder / "eval/loss.json").read_text())["loss"])
    assert len(losses) == 4


def steps(tmp_path, arm):
    """The steps that a run took, in the order in which it took them."""
    lines = (tmp_path / "out/calls").read_text().splitlines()
    return [int(line.split()[0][5:]) for line in lines if line.startswith("step-") and f" {arm}/" in line]


def test_one_that_fails_in_a_pack_goes_on_from_its_checkpoint_and_one_that_vanished_waits_for_it(tmp_path):
    changed = {"budget.amount": 8, "checkpoint.every_steps": 4, "log.every_steps": 1}
    sweep = real(tmp_path, ["a", "full", "moved"], (0,), **changed)
    functions = Functions("tests.sweeps.fakes:train_counted", together="tests.sweeps.fakes:together_disturbed")
    assert run(tmp_path, sweep, 3, functions).code == 1
    stands = state.run_states(tmp_path / "out")
    assert [stands[f"{arm}/seed0"].status for arm in ("a", "full", "moved")] == ["done", "done", "failed"]
    assert "vanished while training in it" in stands["moved/seed0"].error_line
    assert steps(tmp_path, "a") == [*range(1, 9)]
    assert steps(tmp_path, "full") == [*range(1, 6), *range(5, 9)], "from the checkpoint at step 4"
    assert steps(tmp_path, "moved") == [*range(1, 6)]

    folder = tmp_path / "out/runs/moved/seed0"
    assert not folder.exists(), "in its place it would be in the way of its return"
    (tmp_path / "out/away").rename(folder)
    assert run(tmp_path, sweep, 3, functions).code == 0
    assert steps(tmp_path, "moved") == [*range(1, 6), *range(5, 9)]
    for arm in ("a", "full", "moved"):
        lines = (tmp_path / f"out/runs/{arm}/seed0/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [*range(1, 9)]
