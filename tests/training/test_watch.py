"""What is watched ends a run where it should, with a reason, and changes nothing where it does not."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import validate
from configs.errors import ConfigError
from models import initialise
from tests.training.test_trainer import parameters, trace
from training.loop import trainer, watch
from training.run_directory.checkpoint import saved
from training.run_directory.files import read_json
from training.step import train_step

SEEN = ("attention_logit", "attention_logits", "silent_heads")
ALL = {
    "watch__gradients": True,
    "watch__loss_spike": 20.0,
    "watch__loss_steps": 3,
    "watch__attention_logit": 1e6,
    "watch__dead_heads": 0.9,
}


@pytest.fixture(scope="module")
def plain(make_tiny, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("plain")
    trainer.train(make_tiny(), workdir, quiet=True)
    return workdir


def poison(monkeypatch, at: int, loss: float = 0.0, norm: float = 0.0) -> None:
    """Adds to the loss or the gradient's norm that the step of one update gives."""
    compiled, count = train_step.compiled, 0

    def spoilt(*given: Any) -> Any:
        program, seconds = compiled(*given)

        def run(*args: Any) -> Any:
            nonlocal count
            count += 1
            params, opt_state, result, size = program(*args)
            return params, opt_state, result + (loss if count == at else 0.0), size + (norm if count == at else 0.0)

        return run, seconds

    monkeypatch.setattr(train_step, "compiled", spoilt)


def test_what_does_not_fire_changes_nothing(tiny, plain, tmp_path) -> None:
    result = trainer.train(tiny(**ALL), tmp_path, quiet=True)
    assert result["status"] == "done" and result["error"] is None
    watched = trace(tmp_path)
    assert [{k: v for k, v in line.items() if k not in SEEN} for line in watched] == trace(plain)
    for name, value in parameters(tmp_path).items():
        np.testing.assert_array_equal(value, parameters(plain)[name])
    looked = [line for line in watched if "val_loss" in line]
    assert [len(line["attention_logits"]) for line in looked] == [2, 2] and looked[0]["silent_heads"] == 0
    assert all(line["attention_logit"] == max(line["attention_logits"]) for line in looked)
    assert not any("attention_logit" in line for line in trace(plain))


def test_a_gradient_that_is_not_finite_is_told_at_its_step_and_never_saved(tiny, tmp_path, monkeypatch) -> None:
    poison(monkeypatch, 7, norm=np.inf)
    result = trainer.train(tiny(watch__gradients=True, checkpoint__every_steps=4), tmp_path, quiet=True)
    assert result["status"] == "diverged" == read_json(tmp_path / "run.json")["status"]
    assert result["error"] == "the gradient's norm became inf at step 7 (watch.gradients)"
    assert saved(tmp_path) == [4]


def test_a_spike_leaves_what_was_before_it_and_the_run_goes_on_from_there(tiny, plain, tmp_path, monkeypatch) -> None:
    requested = {"watch__loss_spike": 4.0, "watch__loss_steps": 5, "checkpoint__every_steps": 100}
    with monkeypatch.context() as corrupted:
        poison(corrupted, 11, loss=9.0)
        result = trainer.train(tiny(**requested), tmp_path, quiet=True)
    assert result["status"] == "diverged"
    assert "at step 11" in result["error"] and "the checkpoint of step 9 is from before it" in result["error"]
    assert saved(tmp_path) == [9]
    assert trainer.train(tiny(), tmp_path, quiet=True)["status"] == "done"
    assert trace(tmp_path) == trace(plain)


def test_the_step_just_before_a_spike_may_be_what_made_it(tiny, tmp_path, monkeypatch) -> None:
    poison(monkeypatch, 10, loss=9.0)
    requested = {"watch__loss_spike": 4.0, "watch__loss_steps": 5, "checkpoint__every_steps": 100}
    result = trainer.train(tiny(**requested), tmp_path, quiet=True)
    assert "at step 10" in result["error"] and saved(tmp_path) == [6], "step 9 held the last update"


def test_a_rise_that_is_slow_or_early_is_no_spike(tiny) -> None:
    config = validate.resolve(tiny(watch__loss_spike=1.0, watch__loss_steps=4))
    seen = watch.Watch(config)
    seen.check(3, [9.0, 1.0, 30.0])  # before there is a median
    seen.check(6, [9.0, 1.0, 30.0, 9.0, 9.5, 9.9])  # the first three were looked at
    assert list(seen.recent) == [30.0, 9.0, 9.5, 9.9]
    for number in range(20):
        seen.check(7 + number, [10.0 + 0.3 * number])
    again = watch.Watch(config)
    again.restore(seen.state)
    with pytest.raises(watch.Spiked, match=r"rose to 30\.0000 at step 27"):
        again.check(27, [30.0])


def test_a_large_attention_score_ends_the_run_at_the_validation(tiny, tmp_path) -> None:
    result = trainer.train(tiny(watch__attention_logit=1e-3), tmp_path, quiet=True)
    assert result["status"] == "diverged" and result["step"] == 6
    assert "the largest attention score of layer" in result["error"] and "at step 6" in result["error"]
    assert trace(tmp_path)[-1]["step"] == 6, "its line is written"


def test_the_largest_score_by_hand(tiny) -> None:
    requested = {"model__num_layers": 1, "model__position__kind": "none", "model__vocab_size": 16}
    config = validate.resolve(tiny(watch__attention_logit=1.0, watch__dead_heads=0.4, **requested))
    params = initialise(config.model, 3)[1]
    tokens = np.random.default_rng(0).integers(0, 16, (2, 9), np.int32)
    pure = jax.tree.map(np.asarray, nnx.to_pure_dict(params))
    block = pure["blocks"]
    x = pure["embedding"][tokens].astype(np.float64)
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.model.norm_eps) * block["attention_norm"]["scale"][0]
    q, k = (
        (h @ block["attention"][name]["kernel"][0]).reshape(2, 9, config.model.num_heads, -1)
        for name in ("query", "key")
    )
    scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(config.model.head_dim)
    expected = scores[:, :, np.tril(np.ones((9, 9), bool))].max()
    looked = watch.probe(config, {"tokens": tokens})
    assert looked is not None
    result = looked(params)
    assert result["attention_logits"] == [pytest.approx(expected, abs=1e-5)] and result["silent_heads"] == 0
    out = np.array(block["attention"]["out"]["kernel"])
    out[:, : out.shape[1] // 2] = 0.0
    pure["blocks"]["attention"]["out"]["kernel"] = jnp.asarray(out)
    nnx.replace_by_pure_dict(params, jax.tree.map(jnp.asarray, pure))
    dead = looked(params)
    assert dead["silent_heads"] == 1
    with pytest.raises(watch.Diverged, match=r"1 of 2 heads write nothing at step 5 \(watch\.dead_heads = 0\.4\)"):
        watch.judge(config, {**dead, "attention_logits": [0.0]}, 5)
    config.watch.dead_heads = 0.5
    watch.judge(config, {**dead, "attention_logits": [0.0]}, 5)


def test_off_holds_nothing(tiny) -> None:
    config = validate.resolve(tiny())
    seen = watch.Watch(config)
    seen.add(object())
    assert seen.norms == [] and not seen.keeps
    assert watch.probe(config, {}) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"watch__loss_spike": -1.0}, r"watch\.loss_spike = -1\.0: must be 0 or more"),
        ({"watch__loss_steps": 0}, r"watch\.loss_steps = 0: must be above 0"),
        ({"watch__dead_heads": 1.0}, r"watch\.dead_heads = 1\.0: must be in \[0, 1\)"),
        ({"watch__dead_heads": 0.1, "eval__every_steps": 0}, r"watch\.dead_heads = 0\.1: .*eval\.every_steps"),
    ],
)
def test_what_cannot_be_watched_is_refused(tiny, given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        validate.check(tiny(**given))
