"""Optimizers: what each reaches, what it holds, and that it is optax's."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from configs import base, fields, validate
from configs.errors import ConfigError
from configs.rules.optimizer import KINDS
from models import initialise
from models.metadata import each
from tests.models.common import as_dict, tiny
from training.loop import after_step, ending, packed, trainer
from training.run_directory.files import read_json
from training.step import optimizer, optimizers, train_step

KIND = pytest.mark.parametrize("kind", optimizers.OPTIMIZERS)
# What a kind needs beside its name, and values of its fields under which each of them matters in a tiny model.
NEEDED: dict[str, dict[str, Any]] = {
    "muon": {"optimizer__muon__learning_rate": 0.02},
    "adafactor": {"optimizer__adafactor__factor_from": 8},
    "schedule_free_adamw": {"optimizer__schedule": "constant"},
}


def of_kind(make, kind: str, **overrides: Any) -> Any:
    return make(**{"optimizer__kind": kind, **NEEDED.get(kind, {}), **overrides})


def resolved(make, kind: str, **overrides: Any) -> Any:
    config = validate.resolve(of_kind(make, kind, **overrides))
    config.model.vocab_size = config.model.vocab_size or 27
    return config


def test_decay_reaches_matrices_and_not_norms_biases_and_sinks() -> None:
    config = tiny(attention__kind="mla", attention__mla__query_rank=6, attention__sinks=True, attention__out_bias=True)
    params = initialise(config, 0)[1]
    decayed = as_dict(optimizer.decays(params))
    # Layers are stacked: a matrix has three axes, a vector two.
    matrices = {name: leaf.ndim == 3 or name == "embedding" for name, leaf in as_dict(params).items()}
    assert {name: bool(value) for name, value in jax.device_get(decayed).items()} == matrices
    assert not matrices["blocks.attention.sinks"] and matrices["blocks.attention.key_up.kernel"]


def test_every_optimizer_of_the_schema_is_registered_with_its_fields() -> None:
    assert tuple(optimizers.OPTIMIZERS) == tuple(KINDS) == fields.choices("optimizer.kind")
    for result in optimizers.OPTIMIZERS.values():
        assert {f"optimizer.{name}" for name in result.fields} <= set(base.SCHEMA)
    # A group is read by the optimizer of its name alone.
    nested = {name.removeprefix("optimizer.") for name in base.SCHEMA if name.count(".") > 1 and name[:4] == "opti"}
    assert nested == {name for kind, read in KINDS.items() for name in read if name.startswith(f"{kind}.")}
    with pytest.raises(ConfigError, match=r"optimizer\.kind = 'adamm': must be one of .*did you mean adamw\?"):
        optimizers.optimizer("adamm")


@KIND
@pytest.mark.parametrize("bias", [False, True])
def test_the_state_is_as_large_as_declared(make_tiny, kind: str, bias: bool) -> None:
    config = resolved(make_tiny, kind, model__attention__out_bias=bias, model__num_layers=3)
    state = jax.eval_shape(optimizer.make(config.optimizer).init, initialise(config.model, 0)[1])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert size == optimizers.state_bytes(config.model, config.optimizer)


@KIND
def test_fields_that_an_optimizer_does_not_read_are_refused(make_tiny, kind: str) -> None:
    other = {"beta1": 0.3, "beta2": 0.3, "eps": 0.1, "muon.learning_rate": 0.3, "muon.momentum": 0.3, "muon.steps": 3}
    other |= {"muon.nesterov": False, "adafactor.parameter_scale": False, "adafactor.decay_rate": 0.3}
    other |= {"adafactor.clip_threshold": 0.3, "adafactor.factor_from": 9}
    assert set(other) == {name for read in KINDS.values() for name in read}
    for name, value in other.items():
        config = of_kind(make_tiny, kind, **{f"optimizer__{name}": value})
        result = validate.problems(config)
        expected = [] if name in KINDS[kind] else [f"optimizer.{name} = {value!r}: optimizer.kind = {kind!r}"]
        assert [line[: len(start)] for line, start in zip(result, expected, strict=True)] == expected


def test_what_an_optimizer_excludes_is_refused(make_tiny) -> None:
    def lines(**overrides: Any) -> list[str]:
        return validate.problems(make_tiny(**overrides))

    (line,) = lines(optimizer__kind="schedule_free_adamw")
    assert line.startswith("optimizer.schedule = 'cosine': must be constant")
    (line,) = lines(optimizer__kind="schedule_free_adamw", optimizer__schedule="constant", optimizer__beta1=0.0)
    assert line.startswith("optimizer.beta1 = 0: must be above 0")
    (line,) = lines(optimizer__kind="adafactor", model__mup_base_width=8)
    assert line.startswith("optimizer.adafactor.parameter_scale = True")


def gradients(params: Any, step: int) -> Any:
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(step), len(leaves))
    pairs = zip(keys, leaves, strict=True)
    return jax.tree.unflatten(tree, [jax.random.normal(key, leaf.shape) for key, leaf in pairs])


def taken(config: Any, params: Any, grads: Any, rates: list[float], share: float = 1.0) -> list[Any]:
    """Returns the parameters after each of our updates."""
    state, result = optimizer.make(config.optimizer, share=share).init(params), []
    for at, rate in enumerate(rates):
        given = jnp.asarray(optimizer.rates(config.optimizer, rate))
        here = optimizer.point(config.optimizer, params, state)
        transform = optimizer.make(config.optimizer, None, share, given)
        updates, state = jax.jit(transform.update)(grads(here, at), state, here)
        params = optimizer.apply(config.optimizer, here, updates, state, given)
        result.append(params)
    return result


RATES = [0.0, 1e-2, 1e-2, 5e-3, 5e-3]


def by_hand(kind: str, config: Any, rate: float, params: Any) -> optax.GradientTransformation:
    """Returns optax's own optimizer at one learning rate, of parameters as a plain dict."""
    o = config.optimizer
    decayed = {name: jax.tree.leaves(value)[0] for name, value in as_dict(optimizer.decays(params)).items()}
    hidden = as_dict(each(params, lambda declared: declared.group == "hidden"))
    if kind == "adamw":
        return optax.adamw(rate, o.beta1, o.beta2, o.eps, weight_decay=o.weight_decay, mask=decayed)
    if kind == "lion":
        return optax.lion(rate, o.beta1, o.beta2, weight_decay=o.weight_decay, mask=decayed)
    if kind == "muon":
        dims = {name: contrib.MuonDimensionNumbers(1, 2) if value else None for name, value in hidden.items()}
        own = rate * o.muon.learning_rate / o.learning_rate
        muon = contrib.muon(own, muon_weight_dimension_numbers=dims, weight_decay=o.weight_decay)
        adam = optax.adamw(rate, o.beta1, o.beta2, o.eps, weight_decay=o.weight_decay, mask=decayed)
        labels = {name: "muon" if value else "adam" for name, value in hidden.items()}
        return optax.named_chain(
            ("muon", optax.masked(muon, {name: label == "muon" for name, label in labels.items()})),
            ("adam", optax.masked(adam, {name: label == "adam" for name, label in labels.items()})),
        )
    if kind == "schedule_free_adamw":
        return contrib.schedule_free_adamw(rate, b1=o.beta1, b2=o.beta2, eps=o.eps)
    return optax.adafactor(rate, min_dim_size_to_factor=o.adafactor.factor_from)


@KIND
def test_updates_are_those_of_optax(make_tiny, kind: str) -> None:
    decay = 0.1 if kind in ("adamw", "lion", "muon") else 0.0
    config = resolved(make_tiny, kind, optimizer__weight_decay=decay, optimizer__clip_norm=0.0)
    if kind == "adafactor":
        config.model.num_layers = 1
    params = initialise(config.model, 0)[1]
    ours = taken(config, params, gradients, RATES)

    def plain(tree: Any) -> dict[str, Any]:
        # Adafactor sees matrices: its one layer is no axis.
        cut = kind == "adafactor"
        return {name: x[0] if cut and name.startswith("blocks") else x for name, x in as_dict(tree).items()}

    theirs = plain(params)
    state = by_hand(kind, config, RATES[0], params).init(theirs)
    for at, rate in enumerate(RATES):
        update = jax.jit(by_hand(kind, config, rate, params).update)
        updates, state = update(plain(gradients(params, at)), state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        seen = contrib.schedule_free_eval_params(state, theirs) if kind == "schedule_free_adamw" else theirs
        for name, x in plain(ours[at]).items():
            np.testing.assert_allclose(x, seen[name], rtol=2e-5, atol=2e-6, err_msg=name)


def singular_values(x: Any) -> np.ndarray:
    return np.linalg.svd(np.asarray(x, np.float64), compute_uv=False)


def test_muon_orthogonalises_each_layer_by_itself_and_leaves_the_rest_to_adamw(make_tiny) -> None:
    config = resolved(
        make_tiny, "muon", optimizer__weight_decay=0.0, model__attention__out_bias=True, model__tie_embeddings=False
    )
    params = initialise(config.model, 0)[1]
    names = set(as_dict(params))
    of_muon = {name for name, value in as_dict(each(params, optimizers.optimizer("muon").own_rate)).items() if value}
    assert of_muon == {name for name in names if name.startswith("blocks") and name.endswith("kernel")}
    assert {"embedding", "head", "norm.scale", "blocks.attention.out.bias"} <= names - of_muon

    def updates(scale: float) -> dict[str, Any]:
        # The second layer's gradients are another's and far larger; the first layer's are the same.
        def scaled(g: Any) -> Any:
            return g.at[1].multiply(scale) if g.ndim == 3 else g

        transform = optimizer.make(config.optimizer)
        grads = jax.tree.map(scaled, gradients(params, 0))
        return as_dict(transform.update(grads, transform.init(params), params)[0])

    config.optimizer.clip_norm = 0.0
    one, other = updates(1.0), updates(100.0)
    for name in of_muon:
        fan_in, fan_out = one[name].shape[1:]
        for layer in range(2):
            values = singular_values(one[name][layer]) / max(1.0, fan_out / fan_in) ** 0.5
            assert values.min() > 0.3 and values.max() < 1.3, (name, values)
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-4)
    alone = optax.scale_by_adam(config.optimizer.beta1, config.optimizer.beta2, config.optimizer.eps)
    adam = as_dict(alone.update(gradients(params, 0), alone.init(params))[0])
    for name in names - of_muon:
        np.testing.assert_allclose(one[name], adam[name], rtol=1e-6)


def test_adafactor_treats_each_layer_as_a_matrix_by_itself(make_tiny) -> None:
    config = resolved(make_tiny, "adafactor", optimizer__weight_decay=0.0, optimizer__clip_norm=0.0)
    params = initialise(config.model, 0)[1]

    def after(scale: float) -> dict[str, Any]:
        # Only the second layer's parameters are larger, and with them its scale.
        there = jax.tree.map(lambda p: p.at[1].multiply(scale) if p.ndim == 3 else p, params)
        return as_dict(taken(config, there, gradients, [1e-2])[0])

    first, second = after(1.0), after(100.0)
    for name, x in first.items():
        if name.startswith("blocks"):
            np.testing.assert_allclose(x[0], second[name][0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_mup_reaches_what_has_no_rate_of_its_own(make_tiny, kind: str) -> None:
    config = resolved(make_tiny, kind, optimizer__weight_decay=0.0)
    params = initialise(config.model, 0)[1]
    before = as_dict(params)
    full, part = (as_dict(taken(config, params, gradients, [1e-2], share)[0]) for share in (1.0, 0.25))
    hidden = {name for name, group in as_dict(optimizer.groups(params)).items() if group == "hidden"}
    for name, x in before.items():
        share = 0.25 if name in hidden and kind == "adamw" else 1.0
        np.testing.assert_allclose(part[name] - x, share * (full[name] - x), rtol=1e-3, atol=1e-7)


def test_the_matrices_of_muon_follow_their_own_rate(make_tiny) -> None:
    config = resolved(make_tiny, "muon", optimizer__learning_rate=1e-2, optimizer__muon__learning_rate=0.05)
    np.testing.assert_allclose(optimizer.rates(config.optimizer, 5e-3), [5e-3, 0.025], rtol=1e-6)
    assert train_step.arguments(config)[3].shape == (2,)
    adamw = resolved(make_tiny, "adamw")
    assert optimizer.rates(adamw.optimizer, 5e-3) == np.float32(5e-3)


def losses(folder: Any) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["train_loss"] for line in lines if "train_loss" in line]


@KIND
def test_a_run_lowers_the_loss_and_goes_on_exactly(make_tiny, tmp_path, monkeypatch, kind: str) -> None:
    rate = {"lion": 3e-3, "adafactor": 0.1}.get(kind, 1e-2)
    config = of_kind(make_tiny, kind, optimizer__learning_rate=rate, budget__amount=30, model__dropout=0.1)
    config.model.num_layers, config.eval.every_steps = 1, 0
    config.checkpoint.every_steps = 10
    assert trainer.train(config, tmp_path / "whole", quiet=True)["status"] == "done"
    whole = losses(tmp_path / "whole")
    assert whole[-1] < whole[0] - 0.2, whole

    original = after_step.count

    def count(run: Any, *args: Any) -> None:
        original(run, *args)
        if run.state.spent.steps == 13:
            ending.stop(run, 15)

    with monkeypatch.context() as patch:
        patch.setattr(after_step, "count", count)
        assert trainer.train(config, tmp_path / "parts", quiet=True)["status"] == "preempted"
    assert trainer.train(config, tmp_path / "parts", quiet=True)["status"] == "done"
    assert losses(tmp_path / "parts") == whole
    message = read_json(tmp_path / "whole" / "run.json")["optimizer"]
    made = validate.resolve(config)
    made.model.vocab_size = read_json(tmp_path / "whole" / "config.json")["model"]["vocab_size"]
    assert message == {"kind": kind, "state_bytes": optimizers.state_bytes(made.model, made.optimizer)}


def test_a_pack_of_muon_runs_of_different_rates_is_its_runs_by_themselves(make_tiny, tmp_path) -> None:
    def configs() -> list[Any]:
        rates = [(0.02, 1e-2), (0.1, 3e-3)]
        names = ("optimizer__muon__learning_rate", "optimizer__learning_rate")
        given = [dict(zip(names, pair, strict=True)) for pair in rates]
        return [of_kind(make_tiny, "muon", budget__amount=5, model__num_layers=1, **values) for values in given]

    together = [tmp_path / "together" / str(index) for index in range(2)]
    packed.train(configs(), together, quiet=True)
    for config, folder in zip(configs(), together, strict=True):
        trainer.train(config, tmp_path / "alone" / folder.name, quiet=True)
        assert losses(folder) == pytest.approx(losses(tmp_path / "alone" / folder.name), rel=2e-4)
    assert losses(together[0])[-1] != pytest.approx(losses(together[1])[-1], rel=1e-3)
