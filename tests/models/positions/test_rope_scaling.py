"""RoPE scalings: each paper's rule (test_vectors holds numbers of transformers, test_rope_faults others' faults)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import ConfigError
from models import positions
from models.positions import stretched
from models.positions.rope import Rope
from models.positions.rope_scaling import SCALINGS, Scaling, with_scaling
from tests.models.common import normal, tiny

PLAIN = np.asarray(Scaling().frequencies(1e4, 128)[0])


def frequencies(r: int, theta: float = 1e4, lengths: list[int] | None = None, **given: Any) -> np.ndarray:
    read = None if lengths is None else jnp.asarray([lengths])
    return np.asarray(Scaling(**given).frequencies(theta, r, read)[0])


def base(inv_freq: np.ndarray) -> float:
    """The theta that gives these frequencies."""
    return float(inv_freq[1]) ** (-len(inv_freq))


def test_linear_divides_positions() -> None:
    x = normal((1, 9, 1, 8))
    stretched, plain = Rope(1e4, 8, "half", Scaling("linear", 4.0)), Rope(1e4, 8, "half", Scaling())
    np.testing.assert_allclose(stretched.rotate(x)[:, 8:], plain.rotate(x[:, 8:], jnp.asarray([[2]])), rtol=1e-5)


def test_ntk_keeps_the_fastest_and_interpolates_the_slowest() -> None:
    scaled = frequencies(128, kind="ntk", factor=8.0)
    assert scaled[0] == 1 and scaled[-1] == pytest.approx(PLAIN[-1] / 8, rel=1e-6)
    assert base(scaled) == pytest.approx(1e4 * 8 ** (128 / 126), rel=1e-4)


@pytest.mark.parametrize(("length", "theta"), [(2048, 10000.0), (2049, 10009.92), (4096, 30527.74)])
def test_dynamics_base_at_a_length(length: int, theta: float) -> None:
    (scaled,) = frequencies(128, lengths=[length], kind="dynamic", factor=2.0, original_length=2048)[0]
    assert base(scaled) == pytest.approx(theta, rel=1e-4)
    exact = 1e4 * (2 * length / 2048 - 1) ** (128 / 126)
    np.testing.assert_allclose(scaled, exact ** (-np.arange(0, 128, 2) / 128), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_dynamic_is_plain_to_the_bit_within_the_trained_length(compiled: bool) -> None:
    lengths = jnp.asarray([[0, 1, 100, 2047, 2048]])
    scaling = Scaling("dynamic", 2.0, 2048)

    def scaled(lengths: Any) -> Any:
        return scaling.frequencies(1e4, 128, lengths)[0]

    result = (jax.jit(scaled) if compiled else scaled)(lengths)
    np.testing.assert_array_equal(np.asarray(result), np.broadcast_to(PLAIN, (1, 5, 64)))


def test_dynamic_takes_each_sequences_own_length() -> None:
    """A packed document, or a shorter row of a batch, is turned as if it were alone."""
    scheme = Rope(1e4, 8, "half", Scaling("dynamic", 2.0, 4))
    x = normal((1, 12, 1, 8))
    places, segments = jnp.asarray([[*range(9), *range(3)]]), jnp.asarray([[1] * 9 + [2] * 3])
    rotated = scheme.rotate(x, places, positions.sequence_lengths(places, segments))
    np.testing.assert_allclose(rotated[:, :9], scheme.rotate(x[:, :9]), rtol=1e-6)
    plain = dataclasses.replace(scheme, scaling=Scaling())
    np.testing.assert_allclose(rotated[:, 9:], plain.rotate(x[:, 9:]), rtol=1e-6)
    assert np.abs(rotated[:, :9] - plain.rotate(x[:, :9])).max() > 0.1
    with pytest.raises(ValueError, match="needs the sequences' lengths"):
        scheme.rotate(x, places)


def test_yarn_by_hand() -> None:
    result = frequencies(8, kind="yarn", factor=4.0, original_length=2048)
    np.testing.assert_allclose(result, [1, 0.1, 0.00625, 0.00025], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({}, 1.277259),
        ({"mscale": 0.5}, 1.277259),  # both or neither
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (0.05 * math.log(16) + 1) / (0.1 * math.log(16) + 1)),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarns_factor(given: dict[str, float], factor: float) -> None:
    scaling = Scaling(**{"kind": "yarn", "factor": 16.0, "original_length": 2048, **given})  # type: ignore[arg-type]
    assert scaling.frequencies(1e4, 8)[1] == pytest.approx(factor, rel=1e-6)


def test_yarns_factor_multiplies_what_turns_alone() -> None:
    """Scores grow by its square, with partial rotary only those of the rotary dims."""
    config = with_scaling(tiny(head_dim=8, position__rope__fraction=0.5), "yarn", 1.0, attention_factor=1.5)
    x = normal((1, 6, 1, 8))
    scaled, plain = positions.build(config).rotate(x), positions.build(with_scaling(config, "none")).rotate(x)
    np.testing.assert_allclose(scaled[..., :4], 1.5 * plain[..., :4], rtol=1e-5)
    np.testing.assert_array_equal(scaled[..., 4:], x[..., 4:])


def test_yarns_ramp_may_keep_fractions_of_a_dim() -> None:
    given: dict[str, Any] = dict(kind="yarn", factor=32.0, original_length=4096)
    rounded, exact = (frequencies(64, 150000.0, truncate=truncate, **given) for truncate in (True, False))
    assert not np.allclose(rounded, exact, rtol=1e-3)


def test_llama3_ratios() -> None:
    ratio = frequencies(128, 5e5, kind="llama3", factor=8.0, original_length=8192) / frequencies(128, 5e5)
    np.testing.assert_allclose(ratio[:29], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[[29, 32, 34]], [0.828168, 0.371122, 0.190211], rtol=1e-5)
    np.testing.assert_allclose(ratio[35:], 0.125, rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(set(SCALINGS) - {"longrope"}))
def test_a_factor_of_one_is_no_scaling(kind: str) -> None:
    result = frequencies(16, lengths=[7], kind=kind, factor=1.0, original_length=2048)
    np.testing.assert_allclose(np.ravel(result), Scaling().frequencies(1e4, 16)[0], rtol=1e-6)


def test_evaluation_takes_another_scaling() -> None:
    config = tiny(position__rope__scaling__kind="yarn", position__rope__scaling__factor=2.0)
    other = with_scaling(config, "linear", 4)
    assert (other.position.rope.scaling.kind, other.position.rope.scaling.factor) == ("linear", 4.0)
    assert other.position.rope.scaling.original_length == config.position.rope.scaling.original_length == 16
    assert config.position.rope.scaling.kind == "yarn"
    assert with_scaling(config, "yarn", 4, 32, beta_fast=16.0).position.rope.scaling.beta_fast == 16.0
    assert with_scaling(config, "dynamic", 2, 32).position.rope.scaling.original_length == 32
    with pytest.raises(ConfigError, match=r"'yran'.*did you mean yarn"):
        with_scaling(config, "yran", 2)
    with pytest.raises(ConfigError, match="positions are learned, not rope"):
        with_scaling(tiny(position__kind="learned"), "yarn", 2)


@pytest.mark.parametrize("s", [2.0, 4.0, 8.0])
def test_dynamic_at_a_length_is_ntk_of_another_factor(s: float) -> None:
    """Dynamic(s) at length s L0 is NTK(s^2 - s + 1); dynamic(1) there is NTK(s), so it is compared at factor 1."""
    theta, r, original = 10000.0, 64, 128
    lengths = jnp.full((1, 1), int(s * original))

    def dynamic(factor: float) -> np.ndarray:
        scaling = Scaling("dynamic", factor=factor, original_length=original)
        return np.asarray(scaling.frequencies(theta, r, lengths)[0]).reshape(-1)

    def ntk(factor: float) -> np.ndarray:
        return np.asarray(Scaling("ntk", factor=factor).frequencies(theta, r)[0])

    np.testing.assert_allclose(dynamic(s), ntk(s**2 - s + 1), rtol=2e-6)
    np.testing.assert_allclose(dynamic(1.0), ntk(s), rtol=2e-6)
    assert abs(dynamic(s)[-1] / ntk(s)[-1] - 1) > 0.3  # what comparing both at factor s would have mixed up


@pytest.mark.parametrize(("kind", "expected"), [("linear", 4.0), ("ntk", 4.0), ("yarn", 4.0), ("dynamic", 13.0)])
def test_the_strength_of_a_scaling_is_the_stretch_of_the_slowest_pair(kind: str, expected: float) -> None:
    config = with_scaling(tiny(head_dim=8), kind, 4.0, original_length=16)
    assert stretched.slowest_stretch(config, 64) == pytest.approx(expected, rel=1e-5)
    assert stretched.slowest_stretch(tiny(head_dim=8), 64) == pytest.approx(1.0, rel=1e-6)
    assert stretched.slowest_stretch(tiny(position__kind="alibi"), 64) is None
