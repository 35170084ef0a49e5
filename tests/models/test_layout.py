"""The same function in another layout (fused QKV, scanned layers, remat, bfloat16), and how parameters begin."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import models
from models import axes, layers, pattern
from models.initial import seed_key
from models.platform import compiling_for
from models.transformer import Transformer
from tests.models.common import as_dict, build, close, run, tiny, tokens


def loss_and_gradient(model: models.Transformer, **kwargs: Any) -> tuple[jax.Array, Any]:
    graphdef, params = nnx.split(model)

    def loss(params: Any) -> jax.Array:
        logits = nnx.merge(graphdef, params)(tokens(2, 9), **kwargs)
        return jnp.sum(jax.nn.log_softmax(logits)[..., 5])

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    return value, as_dict(gradient)


def fused_from(split: dict[str, Any], name: str) -> np.ndarray:
    parts = [split[f"blocks.attention.{part}.{name}"] for part in ("query", "key", "value")]
    return np.concatenate(parts, axis=-1)


@pytest.mark.fault(10)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fused_equals_split(groups: int) -> None:
    """Fault 10: in the first function, in output, and in gradient, with fewer KV heads than heads."""
    changes = dict(num_kv_heads=groups, head_dim=6, attention__qkv_bias=True)
    split = build(tiny(**changes), noisy=False)
    fused = build(tiny(attention__qkv="fused", **changes), noisy=False)
    ours = as_dict(nnx.state(split))
    kernel = as_dict(nnx.state(fused))["blocks.attention.qkv.kernel"]
    assert kernel.shape == (2, 16, 4 * 6 + 2 * groups * 6)
    assert (kernel == fused_from(ours, "kernel")).all()
    (one, one_gradient), (two, two_gradient) = loss_and_gradient(split), loss_and_gradient(fused)
    close(one, two)
    for name in ("kernel", "bias"):
        close(two_gradient[f"blocks.attention.qkv.{name}"], fused_from(one_gradient, name), 1e-4)
    for name in one_gradient.keys() & two_gradient.keys():
        close(one_gradient[name], two_gradient[name], 1e-4)


@pytest.mark.fault(9)
def test_heads_read_their_groups() -> None:
    """Fault 9: 4 query heads over 2 KV heads with values 10 and 20 read 10 10 20 20, through the real projections."""
    config = tiny(width=16, head_dim=4)
    attention = build(config, noisy=False).layers()[0].attention
    zero = jnp.zeros((16, 16))
    attention.query.kernel[...] = zero
    attention.key.kernel[...] = zero[:, :8]
    # A constant input of ones gives values 10 in group 0 and 20 in group 1.
    attention.value.kernel[...] = jnp.concatenate([jnp.full((16, 4), 10 / 16), jnp.full((16, 4), 20 / 16)], axis=1)
    attention.out.kernel[...] = jnp.eye(16)
    from models.attention import Rows
    from models.positions import build as build_scheme

    out, _, _ = attention(jnp.ones((1, 3, 16)), Rows(), build_scheme(config, "none"), window=None)
    close(out[0, 2], np.repeat([10, 10, 20, 20], 4))


@pytest.mark.fault(11)
def test_head_dim_apart_from_width() -> None:
    """Fault 11: scores are scaled by head_dim, and the output matrix is [H head_dim, width]."""
    config = tiny(head_dim=10, num_heads=2, num_kv_heads=1)
    model = build(config)
    assert model.blocks.attention.out.kernel.shape == (2, 20, 16)
    assert model.blocks.attention.scale == 10**-0.5
    close(
        run(model, tokens(1, 5)),
        run(build(tiny(head_dim=10, num_heads=2, num_kv_heads=1, attention__scale=10**-0.5)), tokens(1, 5)),
    )


def test_scale_of_scores() -> None:
    """1/sqrt(head_dim), muP's 1/head_dim, or a number."""
    arms: list[tuple[dict[str, Any], float]] = [
        ({}, 10**-0.5),
        (dict(attention__scale_rule="sqrt"), 10**-0.5),
        (dict(attention__scale_rule="mup"), 0.1),
        (dict(attention__scale=0.25), 0.25),
    ]
    for changes, expected in arms:
        model, by_number = (
            build(tiny(num_layers=1, head_dim=10, num_heads=2, num_kv_heads=1, **one))
            for one in (changes, dict(attention__scale=expected))
        )
        close(run(model, tokens(1, 5)), run(by_number, tokens(1, 5)), 1e-6)


@functools.cache
def unrolled(**changes: Any) -> tuple[jax.Array, Any]:
    return loss_and_gradient(build(tiny(scan_layers="no", **changes)))


PATTERNS = dict(num_layers=4, position__pattern=("rope", "none"), attention__window_pattern=(2, 0))


@pytest.mark.parametrize("changes", [dict(num_layers=3), PATTERNS, dict(PATTERNS, num_layers=3)], ids=str)
@pytest.mark.parametrize("remat", ["none", "block", "attention", "projections"])
def test_scanned_and_rematerialised_equal_unrolled(changes: dict[str, Any], remat: str) -> None:
    plain, gradient = unrolled(**changes)
    other, other_gradient = loss_and_gradient(build(tiny(scan_layers="yes", remat=remat, **changes)))
    close(plain, other)
    for name, leaf in gradient.items():
        close(leaf, other_gradient[name], 1e-4)


def of_scan(changes: dict[str, Any], remat: str) -> tuple[Any, list[tuple[int, ...]]]:
    """Returns a scanned model's parameters, and the shapes that its loop over layers puts out in a training step."""
    graphdef, params = nnx.split(build(tiny(scan_layers="yes", remat=remat, **changes), noisy=False))
    step = jax.make_jaxpr(jax.grad(lambda p: jnp.sum(nnx.merge(graphdef, p)(tokens(2, 9)))))(params)
    forward = next(eqn for eqn in step.eqns if eqn.primitive.name == "scan")
    return as_dict(params), [variable.aval.shape for variable in forward.outvars]


@pytest.mark.parametrize("changes", [dict(num_layers=3), dict(PATTERNS)], ids=str)
def test_a_loop_over_rematerialised_layers_keeps_no_copy_of_their_parameters(changes: dict[str, Any]) -> None:
    groups = 3 if changes["num_layers"] == 3 else 2
    params, kept = of_scan(changes, "block")
    assert (groups, 2, 9, 16) in kept  # the residual stream
    sizes = {np.prod(leaf.shape[1:]) for name, leaf in params.items() if name.startswith("blocks.")}
    assert not [shape for shape in kept if np.prod(shape[1:]) in sizes], kept


@pytest.mark.parametrize("changes", [dict(), dict(residual="parallel"), dict(dropout=0.3)], ids=str)
def test_an_mlp_in_parts_is_the_whole_one(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerators compute it, of two rows of nine tokens in two parts."""
    key = dict(dropout_key=jax.random.key(3)) if changes else {}
    plain, gradient = loss_and_gradient(build(tiny(scan_layers="no", **changes)), **key)
    monkeypatch.setattr(layers, "MLP_PART", 9 * 24 * 4)
    monkeypatch.setattr(layers, "MLP_TOKENS", 1)
    with compiling_for("gpu"):
        model = build(tiny(scan_layers="yes", remat="block", dtype="float32", attention__kernel="reference", **changes))
        graphdef, params = nnx.split(model)
        text = str(jax.make_jaxpr(lambda p: nnx.merge(graphdef, p)(tokens(2, 9)))(params))
        assert "f32[2,9,24]" not in text and "f32[9,24]" in text
        other, other_gradient = loss_and_gradient(model, **key)
    close(plain, other)
    for name, leaf in gradient.items():
        close(leaf, other_gradient[name], 1e-4)


def test_dropout_draws_the_same_whatever_the_layout() -> None:
    key = jax.random.key(3)
    losses = [
        loss_and_gradient(build(tiny(num_layers=3, dropout=0.3, scan_layers=scan, remat=remat)), dropout_key=key)[0]
        for scan, remat in [("no", "none"), ("yes", "none"), ("no", "block")]
    ]
    close(losses, [losses[0]] * 3)


def test_scan_compiles_one_layer() -> None:
    def products(scan: str) -> int:
        graphdef, params = nnx.split(build(tiny(num_layers=4, scan_layers=scan), noisy=False))
        return jax.jit(lambda p: nnx.merge(graphdef, p)(tokens(1, 8))).lower(params).as_text().count("dot_general")

    assert products("yes") - 1 == (products("no") - 1) / 4


def test_period_of_patterns() -> None:
    assert pattern.period(tiny(num_layers=4)) == 1
    assert pattern.period(tiny(**PATTERNS)) == 2
    assert pattern.period(tiny(**{**PATTERNS, "num_layers": 3})) == 3
    assert (
        pattern.period(tiny(num_layers=6, position__pattern=("rope", "none"), attention__window_pattern=(2, 0, 0))) == 6
    )
    assert [p.window for p in pattern.plans(tiny(num_layers=5, attention__window_pattern=(4, 0)))] == [
        4,
        None,
        4,
        None,
        4,
    ]


def test_bfloat16_computes_near_float32_and_keeps_float32() -> None:
    ids = tokens(2, 12)
    whole, half = build(tiny()), build(tiny(dtype="bfloat16"))
    logits, hidden = run(half, ids), half.hidden(ids)
    assert logits.dtype == jnp.float32
    assert hidden.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(half)))
    expected = run(whole, ids)
    assert jnp.abs(logits - expected).max() < 0.1 * jnp.abs(expected).max()
    assert jnp.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.999
    _, gradient = loss_and_gradient(half)
    assert all(leaf.dtype == jnp.float32 for leaf in gradient.values())


@pytest.mark.fault(1)
def test_bfloat16_tells_far_places_apart() -> None:
    """Fault 1: bfloat16 has no 4095, so places would collide if angles were computed in it."""
    model = build(tiny(dtype="bfloat16", num_layers=1))
    ids = jnp.array([[3, 5]])
    near = [run(model, ids, jnp.array([[0, gap]])) for gap in (4095, 4096)]
    assert jnp.abs(near[0][0, 1] - near[1][0, 1]).max() > 1e-3
    shifted = run(model, ids, jnp.array([[4095, 4096]]))
    close(shifted, run(model, ids, jnp.array([[0, 1]])), 0.05)


def test_same_seed_same_values_across_arms() -> None:
    """A parameter's first value depends on the seed, its name and shape, and not on what else there is."""
    plain = as_dict(models.initialise(tiny(), 0)[1])
    arms: list[dict[str, Any]] = [
        dict(num_kv_heads=1),
        dict(mlp="gelu"),
        dict(position__kind="learned"),
        dict(tie_embeddings=False, attention__qkv_bias=True, attention__qk_norm=True),
        dict(num_heads=2, num_kv_heads=1),
    ]
    for arm in arms:
        other = as_dict(models.initialise(tiny(**arm), 0)[1])
        shared = [name for name in plain.keys() & other.keys() if plain[name].shape == other[name].shape]
        assert len(shared) >= 7
        assert all((plain[name] == other[name]).all() for name in shared), arm
    deeper = as_dict(models.initialise(tiny(num_layers=3), 0)[1])
    name = "blocks.mlp.up.kernel"
    assert (plain[name] == deeper[name][:2]).all()


def test_seeds_and_names_differ() -> None:
    one, two = (as_dict(models.initialise(tiny(num_kv_heads=4), seed)[1]) for seed in (1, 1 + 2**32))
    for name in one:
        assert ("norm" in name) == bool((one[name] == two[name]).all()), name
    query, key = (one[f"blocks.attention.{part}.kernel"] for part in ("query", "key"))
    assert (query != key).all()
    assert (query[0] != query[1]).all()


@pytest.mark.parametrize("init", ["normal", "truncated_normal"])
def test_spread_of_first_values(init: str) -> None:
    """1/sqrt(fan-in), or init_std; the two matrices that write to the residual stream smaller by sqrt(2 L)."""
    changes = dict(width=128, head_dim=16, mlp_width=384, num_layers=8, vocab_size=256, init=init)
    for std in (None, 0.02):
        params = as_dict(models.initialise(tiny(**changes, init_std=std), 0)[1])
        for name, fan_in, shrink in [
            ("embedding", 128, 1),
            ("blocks.attention.query.kernel", 128, 1),
            ("blocks.attention.out.kernel", 64, 4),
            ("blocks.mlp.gate.kernel", 128, 1),
            ("blocks.mlp.down.kernel", 384, 4),
        ]:
            expected = (fan_in**-0.5 if std is None else std) / shrink
            leaf = params[name]
            assert abs(float(leaf.std()) / expected - 1) < 0.02, name
            assert abs(float(leaf.mean())) < 0.02 * expected
            assert (float(jnp.abs(leaf).max()) < 2.3 * expected) == (init == "truncated_normal")


def test_first_values_are_the_same_under_jit() -> None:
    config = tiny(mlp_width=5000)  # more than one piece of numbers a layer
    traced = jax.jit(lambda key: nnx.split(Transformer(config, rngs=nnx.Rngs(key)))[1])(seed_key(5))
    eager = models.initialise(config, 5)[1]
    jax.tree.map(lambda a, b: close(a, b, 1e-7), traced, eager)


def test_state_has_few_arrays() -> None:
    assert len(jax.tree.leaves(models.initialise(tiny(num_layers=12), 0)[1])) == 11


def reshaped() -> bool:
    """Tells whether a product of [B, T, D] is traced with its rows and tokens made one axis."""
    x_BTD, w_DF = jnp.ones((2, 6, 4)), jnp.ones((4, 8))
    return "reshape" in str(jax.make_jaxpr(lambda x, w: layers.matmul(x, w))(x_BTD, w_DF))


def test_rows_and_tokens_are_one_axis_of_a_product_on_the_cpu_alone_and_not_where_devices_share_tokens():
    assert reshaped()
    for platform in ("tpu", "gpu"):
        with compiling_for(platform):
            assert not reshaped(), "what is compiled for it must be what it runs"
    mesh = SimpleNamespace(shape={"data": 2, "context": 2})
    with axes.following(axes.Rules(mesh, (("batch", ("data",)),))):
        assert reshaped()
    with axes.following(axes.Rules(mesh, (("batch", ("data",)), ("length", ("context",))))):
        assert not reshaped()


def test_what_accelerators_compute_again_changes_no_number() -> None:
    """Off the CPU, norms and gated activations keep their inputs alone; output and gradient are equal."""
    model = build(tiny(dtype="float32", attention__kernel="reference", scan_layers="no"))
    loss, gradient = loss_and_gradient(model)
    with compiling_for("gpu"):
        other, other_gradient = loss_and_gradient(model)
    np.testing.assert_allclose(other, loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), other_gradient, gradient)


@pytest.mark.parametrize("kernel", ["blocked", "reference"])
def test_remat_policies_keep_ever_less(kernel: str) -> None:
    """Bytes that differentiation keeps: all, without what follows from matmuls, without these, the input alone."""
    sizes = {}
    for remat in ("none", "projections", "attention", "block"):
        model = build(tiny(attention__kernel=kernel, remat=remat, num_layers=2))
        graph, state = nnx.split(model)

        def backward(state: Any, graph: Any = graph) -> Any:
            return jax.vjp(lambda state: nnx.merge(graph, state)(tokens(2, 64)).sum(), state)[1]

        kept = jax.eval_shape(backward, state)
        sizes[remat] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    assert sizes["none"] > sizes["projections"] > sizes["attention"] > sizes["block"]
