"""Selective attention: what a token forgets, when, and what the cache keeps of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from models import counting
from models.kernels.masks import Masking
from models.switches.selective import FORGOTTEN, forgotten
from tests.models.common import build, close, run, tiny, tokens
from tests.models.test_decode import in_pieces

SELECTIVE = {"attention__weights__kind": "selective"}


def test_a_token_is_forgotten_by_those_after_the_one_that_selected_it() -> None:
    scores = np.full((1, 5, 5), -1.0, np.float32)
    scores[0, 2, 1] = 3.0  # token 2 selects token 1
    scores[0, 2, 0] = scores[0, 2, 2] = 7.0  # neither the first token nor itself
    scores[0, 3, 1] = 0.5
    scores[0, 0, 4] = -np.inf
    sums, after = forgotten(jnp.asarray(scores), Masking(5, 5))
    expected = np.zeros((5, 5), np.float32)
    expected[3, 1], expected[4, 1] = 3.0, 3.5
    np.testing.assert_array_equal(sums[0], expected)
    np.testing.assert_array_equal(after[0], [0, 3.5, 0, 0, 0])


@pytest.mark.parametrize("storage", ["auto", "int8"])
@pytest.mark.parametrize("sizes", [[1] * 11, [4, 1, 5, 1]], ids=str)
def test_pieces_and_steps_equal_the_forward_pass(storage: str, sizes: list[int]) -> None:
    model = build(tiny(**SELECTIVE, attention__kv_storage=storage))
    ids = tokens(2, 11)
    whole = run(model, ids, cache=model.cache(2, 11))[0]
    close(in_pieces(model, ids, sizes), whole, 2e-5)
    plain = build(tiny(attention__kv_storage=storage))
    assert jnp.abs(run(plain, ids, cache=plain.cache(2, 11))[0] - whole).max() > 1e-3


def test_the_cache_keeps_one_number_more_a_token_and_layer() -> None:
    config = tiny(**SELECTIVE)
    cache = build(config).cache(3, 8)
    assert {entry[FORGOTTEN].shape for entry in cache.entries} == {(3, 8, 1)}
    counted = counting.kv_cache_bytes(config, 4, batch=3, capacity=8)
    assert cache.nbytes == sum(counted.values())
    plain = counting.kv_cache_bytes(tiny(), 4, batch=3, capacity=8)
    assert sum(counted.values()) - sum(plain.values()) == config.num_layers * 3 * 8 * 4
