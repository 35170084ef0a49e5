"""Faults others have shipped with RoPE's frequencies: what must change them and what must not."""

import numpy as np
import pytest

from configs import base, cli, validate
from models import positions


def rope(**changes):
    config = base.get_config()
    cli.apply(config, {"model.head_dim": 16, **{name.replace("__", "."): value for name, value in changes.items()}})
    return positions.build(validate.resolve(config).model, "rope")


def frequencies(scheme):
    inv_freq, factor = scheme.scaling.frequencies(scheme.theta, scheme.rotary_dim)
    return np.asarray(inv_freq), float(factor)


STRETCHED = {"model__position__rope__scaling__factor": 4.0, "model__position__rope__scaling__original_length": 64}


@pytest.mark.fault(5)
@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
def test_the_runs_length_changes_nothing_where_factor_and_original_length_are_given(kind: str) -> None:
    made = [rope(model__position__rope__scaling__kind=kind, data__length=n, **STRETCHED) for n in (64, 256, 1024)]
    first = frequencies(made[0])
    for scheme in made[1:]:
        assert np.array_equal(frequencies(scheme)[0], first[0]) and frequencies(scheme)[1] == first[1]
    assert not np.array_equal(first[0], frequencies(rope())[0])


@pytest.mark.fault(22)
def test_two_thetas_in_one_process_turn_by_their_own() -> None:
    x = np.ones((1, 3, 1, 16), np.float32)
    at = np.arange(3)[None]
    rotated = [np.asarray(rope(model__position__rope__theta=t).rotate(x, at, None)) for t in (1e4, 1e2, 1e4)]
    assert np.array_equal(rotated[0], rotated[2]) and not np.allclose(rotated[0], rotated[1])


@pytest.mark.fault(4)
@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ({}, 0.1 * np.log(16.0) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"attention_factor": 1.5}, 1.5),
        ({"attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.5),
    ],
)
def test_yarns_explicit_attention_factor_wins(given: dict, factor: float) -> None:
    changes = {f"model__position__rope__scaling__{name}": value for name, value in given.items()}
    changes |= STRETCHED | {"model__position__rope__scaling__factor": 16.0}
    scheme = rope(model__position__rope__scaling__kind="yarn", **changes)
    assert frequencies(scheme)[1] == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize(
    ("pairing", "expected"),
    [("half", [-1.98411, 1.95990, 2.46238, 4.01980]), ("interleaved", [-1.14264, 1.92208, 2.95985, 4.02980])],
)
def test_both_pairings_at_one_position(pairing: str, expected: list[float]) -> None:
    scheme = rope(model__head_dim=4, model__position__rope__pairing=pairing)
    x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)[None, None, None]
    np.testing.assert_allclose(np.ravel(scheme.rotate(x, np.ones((1, 1), np.int32), None)), expected, atol=2e-5)
