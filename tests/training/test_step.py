"""The training step: weights, accumulation, AdamW and clipping against independent arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from configs import validate
from models import Transformer
from training.run_directory.checkpoint import flat
from training.step import optimizer as optimizers
from training.step import train_step
from training.step.loss import loss_sum, token_losses
from training.step.rng import root_key

VOCAB, ROWS, LENGTH = 27, 8, 16


@pytest.fixture
def resolved(tiny):
    def make(**overrides):
        config = validate.resolve(tiny(data__batch_size=ROWS, **overrides))
        config.model.vocab_size = VOCAB
        return config

    return make


def state(config, seed: int = 0):
    params = nnx.split(Transformer(config.model, rngs=nnx.Rngs(seed)))[1]
    return params, optimizers.make(config.optimizer).init(params)


def batch(seed: int = 0, **weights) -> dict:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, VOCAB, (ROWS, LENGTH + 1), dtype=np.int32)
    real = draw.integers(0, 2, (ROWS, LENGTH)).astype(np.float32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": real} | weights


def run(config, data, params=None, opt_state=None, rate=1e-2, key=0):
    if params is None:
        params, opt_state = state(config)
    # The jitted step donates what it is given, and equal configs share one.
    params, opt_state = jax.tree.map(jnp.copy, (params, opt_state))
    return train_step.jitted(config)(params, opt_state, data, jnp.float32(rate), jax.random.key(key))


def leaves(tree) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float64) for name, x in flat(tree).items()}


@pytest.mark.fault(18)
def test_losses_of_unequal_micro_batches_are_weighted_by_tokens() -> None:
    # 8 tokens of loss 2.0 and 2 tokens of loss 6.0 make 2.8, not 4.0.
    def logits_with_loss(loss: float, n: int):
        other = np.log(np.expm1(loss))  # softmax over two classes: loss = log(1 + exp(other - 0))
        return jnp.asarray([[[0.0, other]] * n], jnp.float32), jnp.zeros((1, n), jnp.int32), jnp.ones((1, n))

    parts = [loss_sum(*logits_with_loss(loss, n))[0] for loss, n in ((2.0, 8), (6.0, 2))]
    assert float(sum(parts)) / 10 == pytest.approx(2.8, abs=1e-5)


@pytest.mark.fault(18)
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_micro_batches_change_nothing_though_their_tokens_are_unequal(resolved, micro_batches) -> None:
    data = batch()
    data["weights"][: ROWS // 2] = 0.0
    data["weights"][0, 0] = 1.0
    # A large epsilon, since Adam's first update divides each gradient by itself and so blows rounding up.
    whole = run(resolved(optimizer__eps=1e-2), data)
    parts = run(resolved(optimizer__eps=1e-2, data__micro_batches=micro_batches), data)
    assert float(parts[2]) == pytest.approx(float(whole[2]), rel=1e-6)
    assert float(parts[3]) == pytest.approx(float(whole[3]), rel=1e-5)
    for name, value in leaves(whole[0]).items():
        np.testing.assert_allclose(leaves(parts[0])[name], value, atol=2e-5, err_msg=name)


@pytest.mark.fault(18)
def test_padding_never_changes_loss_or_gradient(resolved) -> None:
    config = resolved(data__micro_batches=1)
    data = batch()
    short = {name: x[:3] for name, x in data.items()}
    padded = {name: x.copy() for name, x in data.items()}
    padded["weights"][3:] = 0.0
    first, second = run(config, short), run(config, padded)
    assert float(first[2]) == pytest.approx(float(second[2]), rel=1e-6)
    assert float(first[3]) == pytest.approx(float(second[3]), rel=1e-5)


@pytest.mark.fault(18)
def test_a_batch_of_padding_alone_has_loss_and_gradient_zero(resolved) -> None:
    params, _, loss, norm = run(resolved(), batch(weights=np.zeros((ROWS, LENGTH), np.float32)))
    assert float(loss) == 0.0 and float(norm) == 0.0
    assert all(np.isfinite(x).all() for x in leaves(params).values())


def test_norms_and_biases_do_not_decay_and_matrices_do_by_rate_times_decay(resolved) -> None:
    config = resolved(
        model__norm="layernorm", model__norm_bias=True, model__mlp_bias=True, model__attention__qkv_bias=True,
        model__attention__qk_norm=True, optimizer__weight_decay=0.5,
    )  # fmt: skip
    params, opt_state = state(config)
    params = jax.tree.map(lambda x: x + 1.0, params)
    nothing = batch(weights=np.zeros((ROWS, LENGTH), np.float32))
    after = leaves(run(config, nothing, params, opt_state, rate=0.1)[0])
    kept = {name for name, x in leaves(params).items() if np.array_equal(after[name], x)}
    assert kept == {name for name in after if "norm" in name or "bias" in name}
    assert len(kept) >= 6 and len(kept) < len(after)
    for name, x in leaves(params).items():
        if name not in kept:
            np.testing.assert_allclose(after[name], x * (1 - 0.1 * 0.5), rtol=1e-6, err_msg=name)


def test_three_updates_equal_adamw_written_out_in_float64(resolved) -> None:
    config = resolved(optimizer__clip_norm=0.05, optimizer__weight_decay=0.1)
    params, opt_state = state(config)
    graphdef = train_step.abstract(config).graphdef

    def loss(params, data):
        logits = nnx.merge(graphdef, params)(data["tokens"])
        return jnp.sum(token_losses(logits, data["targets"]) * data["weights"]) / jnp.sum(data["weights"])

    gradient = jax.jit(jax.grad(loss))
    ours, opt = params, opt_state
    w = leaves(params)
    m, v = ({name: np.zeros_like(x) for name, x in w.items()} for _ in range(2))
    for t, rate in ((1, 1e-3), (2, 5e-3), (3, 2e-3)):
        data = batch(t)
        grads = leaves(gradient(ours, data))
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        ours, opt, _, message = run(config, data, ours, opt, rate=rate)
        assert float(message) == pytest.approx(norm, rel=1e-5) and norm > 0.05
        for name, g in grads.items():
            g = g * 0.05 / norm
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            update = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-8)
            decay = 0.0 if "norm" in name else 0.1
            w[name] = w[name] - rate * (update + decay * w[name])
    for name, value in leaves(ours).items():
        np.testing.assert_allclose(value, w[name], atol=3e-5, err_msg=name)


def test_the_unweighted_average_of_micro_batches_would_be_another_gradient(resolved) -> None:
    """What optax.MultiSteps does; the test above must be able to tell the two apart."""
    data = batch()
    data["weights"][1:4] = 0.0
    halves = [{name: x[part] for name, x in data.items()} for part in (slice(0, 4), slice(4, 8))]
    config = resolved()
    mean = np.mean([float(run(config, half)[2]) for half in halves])
    assert abs(mean - float(run(config, data)[2])) > 1e-3


def test_z_loss_moves_the_gradient_and_not_the_reported_loss(resolved) -> None:
    plain, pulled = run(resolved(), batch()), run(resolved(optimizer__z_loss=1.0), batch())
    assert float(plain[2]) == pytest.approx(float(pulled[2]), rel=1e-6)
    assert abs(float(plain[3]) - float(pulled[3])) > 1e-3
    logits = jnp.asarray([[[1.0, 2.0, 3.0]]])
    with_z, without = loss_sum(logits, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1)), 0.1)
    log_z = np.log(np.exp([1, 2, 3]).sum())
    assert float(with_z) - float(without) == pytest.approx(0.1 * log_z**2, rel=1e-5)


def test_dropout_is_fixed_by_its_key(resolved) -> None:
    config = resolved(model__dropout=0.5)
    same = [float(run(config, batch(), key=3)[2]) for _ in range(2)]
    assert same[0] == same[1] != float(run(config, batch(), key=4)[2])


def test_token_losses_equal_optax() -> None:
    logits = jax.random.normal(jax.random.key(0), (2, 5, 7)) * 10
    targets = jax.random.randint(jax.random.key(1), (2, 5), 0, 7)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(token_losses(logits, targets), expected, rtol=1e-5)


def test_a_second_seed_and_another_rate_compile_nothing(resolved) -> None:
    first = resolved(seed=1)
    train_step.compiled(first, batch())
    assert train_step.compiled(resolved(seed=2, optimizer__learning_rate=1e-4), batch())[1] == 0.0
    assert train_step.compiled(resolved(seed=1, optimizer__weight_decay=0.2), batch())[1] > 0.0


def test_seeds_beyond_32_bits_differ() -> None:
    seeds = [5, 5 + 2**32, 5 + 2**62, 2**63 - 1]
    keys = {tuple(np.asarray(jax.random.key_data(root_key(seed)))) for seed in seeds}
    assert len(keys) == len(seeds)


def test_memory_of_a_step_is_linear_in_length(resolved) -> None:
    def peak(kernel: str, length: int) -> float:
        config = resolved(model__attention__kernel=kernel, model__width=16, model__num_layers=1, data__length=length)
        config.data.batch_size = 1
        result = train_step.lower(config).compile().memory_analysis()
        return result.argument_size_in_bytes + result.temp_size_in_bytes

    assert peak("auto", 2048) <= 2.2 * peak("auto", 1024)
    assert peak("reference", 2048) > 3 * peak("reference", 1024)  # so that attention is what was measured
