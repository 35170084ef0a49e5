"""Every scheme in a model: decoding, padding, packing, cores and layouts change nothing; parameters are counted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

import models
from configs import fields
from models import counting
from tests.models.common import as_dict, build, run, tiny, tokens

LONGROPE = dict(
    position__rope__scaling__kind="longrope",
    position__rope__scaling__factor=2.0,
    position__rope__scaling__original_length=6,
    position__rope__scaling__short_factor=(1.0, 1.2),
    position__rope__scaling__long_factor=(1.5, 4.0),
)
# Kinds share a model where they can: a compilation takes longer than all else here.
CASES: dict[str, dict[str, Any]] = {
    "biases": dict(position__pattern=("alibi", "t5", "kerple_log", "kerple_power", "fire")),
    "rotations": dict(
        position__pattern=("rope", "p_rope", "xpos", "none"),
        position__rope__fraction=0.5,
        position__rope__scaling__kind="ntk_by_parts",
        position__rope__scaling__factor=2.0,
        position__temperature__kind="ministral3",
        position__temperature__length=3,
    ),
    "scores": dict(position__pattern=("cope", "rope"), attention__window_pattern=(0, 3)),
    "longrope": LONGROPE,
}
ALONE: dict[str, dict[str, Any]] = {
    **{kind: dict(position__kind=kind) for kind in fields.choices("model.position.kind")},
    "layered": dict(position__pattern=("fire", "kerple_power")),
    "windowed biases": dict(position__pattern=("fire", "alibi"), attention__window_pattern=(3, 0)),
    "windowed scores": dict(position__kind="cope", attention__window=3),
    "fire, rope, fire": dict(position__pattern=("fire", "rope", "fire")),
    "p_rope, dynamic": dict(
        position__kind="p_rope",
        position__rope__fraction=0.5,
        position__rope__scaling__kind="dynamic",
        position__rope__scaling__factor=2.0,
        position__rope__scaling__original_length=6,
    ),
}
# A bias table this small, interpolation this near and counts this low are all met within a few tokens.
SMALL = dict(
    position__t5__buckets=6, position__t5__max_distance=8, position__fire__threshold=3.0, position__cope__rows=3
)

BOTH = CASES | ALONE
every = pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in ALONE)])


def config_of(case: str, **changes: Any) -> ConfigDict:
    layers = max(2, len(BOTH[case].get("position__pattern", ())))
    return tiny(**{"num_layers": layers, "position__max_length": 24, **SMALL, **BOTH[case], **changes})


@pytest.mark.fault(3, 13)
@every
def test_decoding_token_by_token_equals_the_forward(case: str) -> None:
    """A prompt of 5, then steps; row 1 is left-padded by 3; GQA; a window of 4 in every other layer."""
    config = config_of(case, **{"attention__window_pattern": (0, 4), **BOTH[case]})
    model, ids = build(config), tokens(2, 11)
    segments = jnp.ones((2, 11), jnp.int32).at[1, :3].set(0)
    places = jnp.maximum(jnp.cumsum(segments, axis=1) - 1, 0)
    graphdef, params = nnx.split(model)
    forward = jax.jit(lambda *args: nnx.merge(graphdef, params)(*args))
    got, cache = run(model, ids[:, :5], places[:, :5], segments[:, :5], cache=model.cache(2, 11))
    parts = [got]
    step = jax.jit(lambda token, cache: nnx.merge(graphdef, params)(token, cache=cache))
    for t in range(5, 11):
        got, cache = step(ids[:, t : t + 1], cache)
        parts.append(got)
    got, real = jnp.concatenate(parts, axis=1), segments[..., None] != 0
    if any(scheme.uses_lengths for scheme in model.schemes.values()):
        # The prompt was read at its own length, and so was each token after it: row 0 crosses 6 first, row 1 later.
        for end in (5, 7, 8, 11):
            there = (jnp.arange(11) < end).astype(jnp.int32) * segments
            expected = forward(ids, places * there, there)[:, end - 1]
            np.testing.assert_allclose(got[:, end - 1], expected, atol=2e-5)
    else:
        np.testing.assert_allclose(got * real, forward(ids, places, segments) * real, atol=2e-5)


@pytest.mark.fault(7, 17)
@every
def test_left_padding_and_packing_change_nothing(case: str) -> None:
    model, ids = build(config_of(case)), tokens(1, 12)
    first, second = ids[:, :5], ids[:, 5:]
    at, segments = jnp.asarray([[*range(5), *range(7)]]), jnp.asarray([[1] * 5 + [2] * 7])
    graphdef, params = nnx.split(model)
    forward = jax.jit(lambda ids, at, segments: nnx.merge(graphdef, params)(ids, at, segments))
    packed = forward(ids, at, segments)
    other = forward(jnp.concatenate([(first + 1) % 32, second], axis=1), at, segments)
    np.testing.assert_array_equal(packed[:, 5:], other[:, 5:])
    alone = run(model, second)
    np.testing.assert_allclose(packed[:, 5:], alone, atol=2e-5)
    padded = forward(
        jnp.pad(second, ((0, 0), (5, 0))), jnp.asarray([[0] * 5 + [*range(7)]]), jnp.asarray([[0] * 5 + [1] * 7])
    )
    np.testing.assert_allclose(padded[:, 5:], alone, atol=2e-5)


def gradient_of(config: ConfigDict, params: Any, ids: jax.Array) -> dict[str, jax.Array]:
    graphdef = models.initialise(config, 0)[0]
    return as_dict(jax.jit(jax.grad(lambda p: jnp.mean(jnp.sin(nnx.merge(graphdef, p)(ids)))))(params))


BLOCKED, SCANNED = dict(attention__kernel="blocked"), dict(scan_layers="yes", remat="block")


@pytest.mark.parametrize(
    ("case", "change", "layers"),
    [
        ("biases", BLOCKED, 5),
        ("layered", SCANNED, 4),
        *(pytest.param(case, SCANNED, 2, marks=pytest.mark.slow) for case in ALONE if "," not in case),
        *(pytest.param(case, BLOCKED, 2, marks=pytest.mark.slow) for case in ALONE if "cope" not in str(ALONE[case])),
    ],
)
def test_cores_and_layouts_agree_in_gradient(case: str, change: dict[str, Any], layers: int) -> None:
    plain = config_of(case, num_layers=layers, attention__kernel="reference", scan_layers="no")
    params, ids = nnx.state(build(plain)), tokens(2, 9)
    gradient = gradient_of(plain, params, ids)
    assert all(np.isfinite(leaf).all() for leaf in gradient.values())
    changed = config_of(case, **{"num_layers": layers, "attention__kernel": "reference", **change})
    others = gradient_of(changed, params, ids)
    for name, leaf in gradient.items():
        np.testing.assert_allclose(others[name], leaf, atol=3e-6, rtol=2e-3, err_msg=name)


@pytest.mark.parametrize(
    ("case", "moves"),
    [(kind, kind in ("learned", "sinusoidal", "fire")) for kind in fields.choices("model.position.kind")],
)
def test_only_distance_counts_where_it_should(case: str, moves: bool) -> None:
    model, ids = build(config_of(case)), tokens(1, 9)
    at = jnp.arange(9)[None]
    near, far = run(model, ids, at), run(model, ids, at + 12)
    if moves:
        assert np.abs(near - far).max() > 1e-3
    else:
        np.testing.assert_allclose(near, far, atol=1e-4)


@every
def test_every_parameter_is_counted(case: str) -> None:
    config = config_of(case)
    params = as_dict(models.initialise(config, 0)[1])
    counted = counting.parameters(config)
    assert counted["total"] == sum(leaf.size for leaf in params.values())
    assert counted["position"] == sum(leaf.size for name, leaf in params.items() if "schemes" in name)


def test_arms_share_first_values_whatever_their_positions() -> None:
    def first(case: str, layers: int = 2) -> dict[str, jax.Array]:
        return as_dict(models.initialise(config_of(case, num_layers=layers), 0)[1])

    plain = first("none")
    for case in BOTH:
        result = first(case)
        assert all((result[name] == leaf).all() for name, leaf in plain.items())
    for case in ("fire", "kerple_log"):
        deep, shallow = first(case, 4), first(case)
        assert all((deep[name][:2] == leaf).all() for name, leaf in shallow.items() if "schemes" in name)
        assert any((leaf[0] != leaf[1]).any() for name, leaf in deep.items() if "schemes" in name)


@pytest.mark.fault(1)
@pytest.mark.parametrize("case", ["rope", "p_rope", "alibi", "t5", "kerple_log", "kerple_power", "fire", "longrope"])
def test_positions_are_float32_also_where_the_model_is_bfloat16(case: str) -> None:
    """At position 100,000 bfloat16 knows multiples of 512 alone: the order of neighbours would be lost."""
    scheme = build(config_of(case)).schemes["rope" if case == "longrope" else case].layer(1)
    at = jnp.asarray([[99_997, 99_998, 99_999, 100_000]])
    function = scheme.bias()
    if function is not None:
        bias = function(at, at)
        assert bias.dtype == jnp.float32
        low = np.asarray(function(at - 99_000, at - 99_000)) if case != "fire" else bias
        np.testing.assert_allclose(bias, low, rtol=1e-6)
        assert len(np.unique(np.asarray(bias)[0, 0, 3])) == 4
        return
    x = jnp.ones((1, 4, 1, 4), jnp.bfloat16)
    rotated = scheme.rotate(x, at, jnp.full((1, 4), 100_000))
    assert rotated.dtype == jnp.bfloat16
    frequencies = {"rope": [1, 0.01], "p_rope": [1, 0.01], "longrope": [1 / 1.5, 0.0025]}[case]
    factor = np.sqrt(1 + np.log(2) / np.log(6)) if case == "longrope" else 1.0
    angle = np.asarray(at)[0, :, None] * np.array(frequencies, np.float64)
    expected = factor * np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)], -1)
    np.testing.assert_allclose(np.asarray(rotated[0, :, 0], np.float32), expected, atol=0.03)
