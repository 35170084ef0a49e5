"""muP (2203.03466, table 8): first values, logits and learning rates by width; standard at its base width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import cli, validate
from configs.errors import ConfigError
from eval import coordinates
from models import initialise
from training.run_directory.checkpoint import flat
from training.step import optimizer, train_step

BASE = 16
BATCH = {"tokens": np.arange(32, dtype=np.int32).reshape(2, 16) % 60}
BATCH |= {"targets": BATCH["tokens"] + 1, "weights": np.ones((2, 16), np.float32)}
HIDDEN = {f"blocks.attention.{name}.kernel" for name in ("query", "key", "value", "out")}
HIDDEN |= {f"blocks.mlp.{name}.kernel" for name in ("gate", "up", "down")}


def config(width: int, base: int | None = None, **changes):
    fields = {"model.width": width, "model.num_heads": width // 8, "model.num_layers": 2, "model.vocab_size": 256}
    if base is not None:
        fields["model.mup_base_width"] = base
    return validate.resolve(cli.load("configs/tiny.py", fields | {"data.length": 16} | changes))


def stepped(one, rate: float = 0.01):
    """Returns (first parameters, those after a step) by name."""
    _, params = initialise(one.model, 0)
    before = {name: np.asarray(x) for name, x in flat(params).items()}
    state = train_step.initial_opt_state(one, params)
    params, *_ = train_step.jitted(one)(params, state, BATCH, np.float32(rate), jax.random.key(0))
    return before, {name: np.asarray(x) for name, x in flat(params).items()}


def test_at_its_base_width_it_is_the_standard_model_to_the_bit():
    for own, theirs in zip(stepped(config(BASE, BASE)), stepped(config(BASE)), strict=True):
        assert own.keys() == theirs.keys()
        assert all(np.array_equal(own[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("qkv", ["split", "fused"])
def test_matrices_whose_inputs_grow_with_width_are_one_group(qkv):
    one = config(32, BASE, **{"model.attention.qkv": qkv, "model.position.kind": "learned", "model.mlp_bias": True})
    _, params = initialise(one.model, 0)
    results = {name for name, group in flat(optimizer.groups(params)).items() if group == "hidden"}
    split = {f"blocks.attention.{name}.kernel" for name in ("query", "key", "value")}
    assert results == (HIDDEN if qkv == "split" else HIDDEN - split | {"blocks.attention.qkv.kernel"})


def test_adam_moves_hidden_matrices_by_the_share_and_all_else_by_the_rate():
    plain = {"optimizer.weight_decay": 0.0, "optimizer.clip_norm": 0.0, "optimizer.eps": 1e-12}
    before, after = stepped(config(4 * BASE, BASE, **plain))
    for name in before:
        moved = np.abs(after[name] - before[name]).max()  # Adam's first step is the rate times a sign
        assert moved == pytest.approx(0.01 / 4 if name in HIDDEN else 0.01, rel=1e-2), name


def test_decay_does_not_shrink_with_the_rate():
    """What decay takes from a matrix in a step is rate * decay * p at every width (decoupled from muP's share)."""
    runs = [stepped(config(4 * BASE, BASE, **{"optimizer.weight_decay": decay})) for decay in (0.0, 0.5)]
    (before, without), (_, decayed) = runs
    for name in HIDDEN:
        assert np.allclose(decayed[name] - without[name], -0.01 * 0.5 * before[name], atol=1e-6), name


def test_logits_are_multiplied_and_first_values_keep_their_size():
    wide, standard = config(4 * BASE, BASE), config(4 * BASE)
    graph, params = initialise(wide.model, 0)
    plain = initialise(standard.model, 0)[0]
    mine, theirs = (nnx.merge(one, params)(BATCH["tokens"]) for one in (graph, plain))
    assert jnp.allclose(mine, theirs / 4, rtol=1e-5)
    for width in (BASE, 4 * BASE):
        table = flat(initialise(config(width, BASE).model, 0)[1])["embedding"]
        assert float(jnp.std(table)) == pytest.approx(BASE**-0.5, rel=0.05)
        own = {"model.init_std": 0.1, "model.tie_embeddings": False, "model.position.kind": "learned"}
        result = flat(initialise(config(width, BASE, **own).model, 0)[1])
        assert float(jnp.std(result["head"])) == pytest.approx(0.1, rel=0.05)
        query = float(jnp.std(result["blocks.attention.query.kernel"]))
        assert query == pytest.approx(0.1 * (BASE / width) ** 0.5, rel=0.1)


def test_a_loss_in_blocks_has_the_same_factor():
    losses = []
    for block in (None, 8):
        one = config(4 * BASE, BASE, **({} if block is None else {"model.loss_block": block}))
        losses.append(train_step.batch_loss(one, nnx.merge(*initialise(one.model, 0)), BATCH, None)[0])
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-5)


def test_latent_attention_is_refused():
    with pytest.raises(ConfigError, match="mup_base_width = 16: latent attention's ranks"):
        config(32, BASE, **{"model.attention.kind": "mla"})


def test_the_coordinate_check_sees_growth_and_flatness(capsys):
    given = ["--config=configs/tiny.py", "--widths=32,128", "--steps=3", "--seeds=1"]
    given += ["--config.model.num_layers=1", "--config.data.length=16", "--config.data.batch_size=4"]
    assert coordinates.main(given) == 0
    assert "muP is flat" in capsys.readouterr().out


def test_the_check_fails_where_it_must():
    flat_one = coordinates.Check((32, 128), {"layer 1": [1.0, 1.0], "logits": [1.0, 0.5]})
    growing = coordinates.Check((32, 128), {"layer 1": [1.0, 2.5], "logits": [1.0, 1.2]})
    assert coordinates.verdict(flat_one, growing)[0]
    good, words = coordinates.verdict(growing, growing)
    assert not good and "muP is not flat: slopes of layer 1 +0.66" in words
    good, words = coordinates.verdict(flat_one, flat_one)
    assert not good and "required for a valid check" in words


def test_the_coordinate_check_watches_layers_of_every_switch_without_changing_them():
    one = config(BASE, **{"model.attention.value_residual": "learned"})
    graph, params = initialise(one.model, 0)
    expected = nnx.merge(graph, params)(jnp.asarray(BATCH["tokens"]))
    seen = coordinates._activations(nnx.merge(graph, params), jnp.asarray(BATCH["tokens"]))
    np.testing.assert_allclose(seen["logits"], expected, atol=1e-5)
    assert {"layer 1", "layer 2"} < seen.keys()
