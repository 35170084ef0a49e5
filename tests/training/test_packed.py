"""Runs of one program are the runs that they are alone: traces, parameters, files, divergence, resumption."""

import errno
import os
import signal

import jax
import numpy as np
import pytest

from configs import validate
from configs.errors import UserError
from tests.training.test_trainer import parameters, trace
from training.loop import after_step, pack_compat, packed, trainer
from training.run_directory.checkpoint import Checkpoints
from training.run_directory.files import read_json

RATES, DECAYS, SEEDS = (1e-2, 3e-3, 1e-2), (0.1, 0.1, 0.02), (0, 0, 7)


@pytest.fixture(scope="module")
def configs(make_tiny):
    def make():
        return [
            make_tiny(seed=seed, optimizer__learning_rate=rate, optimizer__weight_decay=decay, model__dropout=0.1)
            for seed, rate, decay in zip(SEEDS, RATES, DECAYS, strict=True)
        ]

    return make


@pytest.fixture(scope="module")
def alone(configs, tmp_path_factory):
    folders = [tmp_path_factory.mktemp(f"alone{i}") for i in range(len(SEEDS))]
    for config, folder in zip(configs(), folders, strict=True):
        trainer.train(config, folder, quiet=True)
    return folders


def compare(folder, reference):
    ours, theirs = trace(folder), trace(reference)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for line, other in zip(ours, theirs, strict=True):
        assert line == pytest.approx(other, rel=2e-4, abs=1e-6)
    expected = parameters(reference)
    for name, x in parameters(folder).items():
        np.testing.assert_allclose(x, expected[name], rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.fixture
def rested(monkeypatch):
    """Holds every step to leaving, bit for bit, the state of those it does not move; returns how often each rested."""
    original, counted = packed.step, dict[int, int]()

    def step(pack, moving):
        resting = [at for at, run in enumerate(pack.members) if run not in moving]
        before = jax.tree.map(lambda x: np.array(x)[resting], pack.state)
        original(pack, moving)
        after = jax.tree.map(lambda x: np.array(x)[resting], pack.state)
        jax.tree.map(np.testing.assert_array_equal, after, before)
        counted.update({at: counted.get(at, 0) + 1 for at in resting})

    monkeypatch.setattr(packed, "step", step)
    return counted


TOLD = ("started", "updated", "wall_time", "train_loss", "val_loss", "best_val_loss", "packed_with")


def test_a_pack_is_its_runs_by_themselves(configs, alone, tmp_path):
    folders = [tmp_path / "arm" / f"seed{i}" for i in range(len(SEEDS))]
    results = packed.train(configs(), folders, quiet=True)
    assert [result["status"] for result in results] == ["done"] * 3
    for folder, reference in zip(folders, alone, strict=True):
        compare(folder, reference)
        assert read_json(folder / "config.json") == read_json(reference / "config.json")
        ours, theirs = read_json(folder / "run.json"), read_json(reference / "run.json")
        assert {k: v for k, v in ours.items() if k not in TOLD} == {k: v for k, v in theirs.items() if k not in TOLD}
        assert ours["packed_with"] == [f"arm/seed{i}" for i in range(3) if folder != folders[i]]
        names = {path.relative_to(reference).parts[0] for path in reference.rglob("*")}
        assert {path.relative_to(folder).parts[0] for path in folder.rglob("*")} == names
    losses = [trace(folder)[-1]["train_loss"] for folder in folders]
    assert len(set(losses)) == 3, "each with its own rate, decay and seed"
    assert packed.train(configs(), folders, quiet=True) == results, "finished runs are left as they are"


def test_a_pack_that_is_stopped_and_one_that_lags_behind_go_on_to_the_same_trace(
    configs, alone, tmp_path, monkeypatch, rested
):
    folders = [tmp_path / str(i) for i in range(len(SEEDS))]
    original = after_step.spend

    def spend(run, tokens, seconds):
        original(run, tokens, seconds)
        if run.state.spent.steps == 7 and run.plan.workdir == folders[-1]:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(after_step, "spend", spend)
        stopped = packed.train(configs(), folders, quiet=True)
    assert [result["status"] for result in stopped] == ["preempted"] * 3
    # As if the process had been killed before the second run wrote its last checkpoint.
    newest = max((folders[1] / "checkpoints").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    assert newest.name == "7"
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    assert [result["status"] for result in packed.train(configs(), folders, quiet=True)] == ["done"] * 3
    assert rested.keys() == {0, 2}
    for folder, reference in zip(folders, alone, strict=True):
        compare(folder, reference)


def test_a_run_that_diverges_ends_and_the_others_go_on(configs, alone, tmp_path, rested):
    given = configs()
    given[1].optimizer.learning_rate = 1e30
    folders = [tmp_path / str(i) for i in range(len(SEEDS))]
    results = packed.train(given, folders, quiet=True)
    assert [result["status"] for result in results] == ["done", "diverged", "done"]
    assert "the training loss became" in results[1]["error"] and results[1]["step"] < 12
    assert rested == {1: 12 - results[1]["step"]}
    for i in (0, 2):
        compare(folders[i], alone[i])


def test_a_run_whose_directory_vanishes_says_so_and_the_others_go_on(configs, alone, tmp_path, monkeypatch):
    folders = [tmp_path / str(i) for i in range(len(SEEDS))]
    original = after_step.spend

    def spend(run, tokens, seconds):
        original(run, tokens, seconds)
        if run.state.spent.steps == 5 and run.plan.workdir == folders[1]:
            folders[1].rename(tmp_path / "elsewhere")

    monkeypatch.setattr(after_step, "spend", spend)
    results = packed.train(configs(), folders, quiet=True)
    assert [result["status"] for result in results] == ["done", "failed", "done"]
    assert results[1]["error"].startswith(f"{folders[1]}: vanished while training in it")
    assert not folders[1].exists()
    for i in (0, 2):
        compare(folders[i], alone[i])


def test_only_runs_that_are_alike_are_packed(make_tiny, tmp_path):
    first = validate.resolve(make_tiny())

    def key(**overrides):
        return pack_compat.key(validate.resolve(make_tiny(**overrides)))

    assert key() == key(seed=5, name="x", optimizer__learning_rate=1.0, optimizer__weight_decay=0.3) is not None
    for other in ({"optimizer__weight_decay": 0.0}, {"optimizer__beta2": 0.9}, {"model__num_heads": 4},
                  {"data__length": 8}, {"budget__amount": 3}):  # fmt: skip
        assert key(**other) not in (None, key()), other
    for alone in ({"budget__kind": "seconds"}, {"init_from": "x"}, {"mesh__data": 2}):
        assert key(**alone) is None, alone
    with pytest.raises(UserError, match="may differ only in seed, learning rate and weight decay"):
        packed.train([first, make_tiny(data__length=8)], [tmp_path / "a", tmp_path / "b"], quiet=True)
    assert not (tmp_path / "a").exists()


def test_a_run_that_fails_while_it_ends_leaves_the_others(configs, alone, tmp_path, monkeypatch):
    folders = [tmp_path / str(i) for i in range(len(SEEDS))]
    original = Checkpoints.close

    def close(self):
        original(self)
        if self.folder.parent == folders[0].resolve():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoints, "close", close)
    results = packed.train(configs(), folders, quiet=True)
    assert [result["status"] for result in results] == ["failed", "done", "done"]
    assert "No space left on device" in results[0]["error"] == read_json(folders[0] / "run.json")["error"]
    for i in (1, 2):
        compare(folders[i], alone[i])
