"""Tokens are drawn from the nucleus, as often as their probabilities say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from models.decoding import decode
from tests.models.common import build, run, tiny, tokens

TOKENS = 32


def smallest_set(probabilities: np.ndarray, top_p: float) -> set[int]:
    """Returns the likeliest tokens, taken one by one until they come to top_p."""
    results: set[int] = set()
    total = 0.0
    for token in sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i)):
        if total >= top_p:
            break
        results.add(token)
        total += probabilities[token]
    return results


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), spread=st.sampled_from([0.0, 0.1, 1.0, 30.0]), top_p=st.floats(1e-3, 1.0))
def test_the_nucleus_is_the_smallest_set_that_comes_to_top_p(seed: int, spread: float, top_p: float) -> None:
    logits = spread * np.random.default_rng(seed).normal(size=(3, TOKENS)).astype(np.float32)
    logits[:, 5] = logits[:, 9]  # equals, too
    got = np.asarray(jax.jit(decode.nucleus)(logits, np.float32(top_p)))
    for row, kept in zip(logits.astype(np.float64), got, strict=True):
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        # In float32 a sum may fall on either side of a top_p that is nearly met.
        inner, outer = smallest_set(probabilities, top_p - 1e-5), smallest_set(probabilities, top_p + 1e-5)
        result = set(np.flatnonzero(kept > -np.inf))
        assert inner <= result <= outer or (top_p == 1 and len(result) == TOKENS)
        assert (kept[sorted(result)] == row[sorted(result)]).all()


def test_the_nucleus_of_known_probabilities() -> None:
    logits = np.log(np.float32([0.25, 0.5, 0.15, 0.1]))
    for top_p, expected in [(1e-6, [1]), (0.49, [1]), (0.51, [0, 1]), (0.76, [0, 1, 2]), (0.91, [0, 1, 2, 3])]:
        assert np.flatnonzero(decode.nucleus(logits, top_p) > -np.inf).tolist() == expected
    assert np.flatnonzero(decode.nucleus(np.zeros(4, np.float32), 0.5) > -np.inf).tolist() == [0, 1]
    # Shares below one float32 step of 1 do not fall out where everything is asked for.
    assert (decode.nucleus(np.float32([0.0] + [-30.0] * 8), 1.0) > -np.inf).all()


def test_drawn_as_often_as_the_probabilities_say() -> None:
    graphdef, params = nnx.split(build(tiny(init_std=0.3)))
    ids = jnp.tile(tokens(1, 3), (256, 1))

    def draw(seed: int, **settings: float) -> np.ndarray:
        return np.asarray(decode.generate(graphdef, params, ids, max_new=3, key=jax.random.key(seed), **settings))

    heat, top_p = 1.5, 0.6
    many = np.stack([draw(seed, temperature=heat, top_p=top_p) for seed in range(16)])
    logits = np.asarray(run(nnx.merge(graphdef, params), ids[:1])[0, -1], np.float64) / heat
    probabilities = np.exp(logits) / np.exp(logits).sum()
    nucleus = sorted(smallest_set(probabilities, top_p))
    assert 1 < len(nucleus) < TOKENS - 5
    counts = np.bincount(many[:, :, 0].ravel(), minlength=TOKENS)
    assert counts[nucleus].sum() == counts.sum()
    required = probabilities[nucleus] / probabilities[nucleus].sum()
    # Pearson's statistic is about its degrees of freedom, give or take the root of twice as many.
    expected = required * counts.sum()
    statistic, freedom = ((counts[nucleus] - expected) ** 2 / expected).sum(), len(nucleus) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    # Later tokens are drawn by the same rule, given those before: here the second, after the commonest first.
    first = int(counts.argmax())
    after = np.asarray(run(nnx.merge(graphdef, params), jnp.append(ids[:1], jnp.full((1, 1), first), axis=1))[0, -1])
    after = np.exp(np.float64(after) / heat) / np.exp(np.float64(after) / heat).sum()
    assert set(many[many[:, :, 0] == first][:, 1]) <= smallest_set(after, top_p)
    assert (draw(1, temperature=heat, top_p=1.0) == draw(1, temperature=heat)).all()
    assert (draw(1, temperature=heat, top_p=1e-6) == decode.generate(graphdef, params, ids, max_new=3)).all()


@pytest.mark.parametrize("settings", [dict(top_p=0.0), dict(top_p=1.01), dict(temperature=np.nan)], ids=str)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    graphdef, params = nnx.split(build(tiny()))
    with pytest.raises(UserError, match=rf"{next(iter(settings))} = .*must be"):
        decode.generate(graphdef, params, tokens(1, 3), max_new=1, key=jax.random.key(0), **settings)
