"""Scores: an independent softmax, in pieces or whole, one program for every scaling."""

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax

from eval import variants
from eval.quality import scoring
from models.positions import stretched

rng = np.random.default_rng(0)


def batch(rows: int = 3, length: int = 16, vocab: int = 256) -> dict[str, np.ndarray]:
    tokens = rng.integers(0, vocab, (rows, length + 1)).astype(np.int32)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def by_numpy(model_config, params, given) -> tuple[np.ndarray, np.ndarray]:
    """Losses and argmax from the model's logits, by numpy in float64."""
    graph = scoring.graphdef(model_config)
    logits = np.asarray(jax.jit(lambda p, t: nnx.merge(graph, p)(t))(params, given["tokens"]), np.float64)
    losses = -np.take_along_axis(log_softmax(logits, axis=-1), given["targets"][..., None], -1)[..., 0]
    return losses, logits.argmax(-1)


def test_losses_and_argmax_equal_numpys(make):
    run, given = make(), batch()
    losses, likeliest = scoring.score(run.config.model, run.params, given)
    expected, argmax = by_numpy(run.config.model, run.params, given)
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    np.testing.assert_array_equal(likeliest, argmax)


def test_pieces_change_nothing(make, monkeypatch):
    run, given = make(), batch(length=19)  # a shape no other test has compiled
    monkeypatch.setattr(scoring, "LOGITS", 3 * 256 * 5)  # 5 of 19 positions at once
    called = []
    original = scoring._in_pieces
    monkeypatch.setattr(scoring, "_in_pieces", lambda *args: called.append(args[-1]) or original(*args))
    losses, likeliest = scoring.score(run.config.model, run.params, given)
    expected, argmax = by_numpy(run.config.model, run.params, given)
    assert called == [5]
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    np.testing.assert_array_equal(likeliest, argmax)


def test_what_is_prepared_once_gives_the_same_scores_and_is_not_prepared_again(make, monkeypatch):
    run = make(model__position__rope__scaling__kind="dynamic", model__position__rope__scaling__factor=2.0)
    prepared, requested = scoring.Prepared(run.config.model), []
    share = stretched.share
    monkeypatch.setattr(stretched, "share", lambda *given: requested.append(given[1]) or share(*given))
    for length in (16, 48, 16, 48, 16):
        given = batch(length=length)
        expected = by_numpy(run.config.model, run.params, given)
        losses, likeliest = scoring.score(prepared, run.params, given)
        np.testing.assert_allclose(losses, expected[0], atol=5e-5)
        np.testing.assert_array_equal(likeliest, expected[1])
    assert requested == [16, 48]


SCALINGS = ("none", "linear", "ntk", "dynamic", "yarn", "llama3")


@pytest.mark.parametrize("factor", [0.0, 4.0])
def test_a_scaling_at_evaluation_is_the_model_built_with_it(make, factor: float):
    run = make(eval__multiples=(4,), eval__scalings=SCALINGS, eval__scaling_factor=factor)
    given = batch(length=64)
    seen = {}
    for variant in variants.variants(run.config)[1:]:
        expected, _ = by_numpy(variant.model, run.params, given)
        seen[variant.scaling], _ = scoring.score(variant.model, run.params, given)
        np.testing.assert_allclose(seen[variant.scaling], expected, atol=5e-5, err_msg=variant.scaling)
    for first in SCALINGS:
        for second in SCALINGS:
            if first < second:
                difference = np.abs(seen[first] - seen[second]).max()
                if factor == 0 and (first, second) == ("dynamic", "ntk"):  # dynamic(1) at m L0 is NTK(m)
                    assert difference < 1e-5
                else:  # each kind does something of its own; dynamic(4) at 4 L0 is NTK(13)
                    assert difference > 1e-3, (first, second)


def test_scalings_of_one_length_share_one_program(make):
    run = make(eval__multiples=(2,), eval__scalings=SCALINGS)
    given = batch(length=32)
    before = scoring._score._cache_size()
    for variant in variants.variants(run.config):
        scoring.score(variant.model, run.params, given)
    assert scoring._score._cache_size() == before + 1


def test_equal_functions_have_equal_keys(make):
    run = make(eval__multiples=(1, 2), eval__scalings=SCALINGS)
    keys = {(v.scaling, v.multiple): scoring.function_key(v.model, v.length) for v in variants.variants(run.config)}
    # At the training length a factor of 1 leaves RoPE as it is; at twice that raw RoPE equals the run's own, and
    # dynamic(1) is NTK(2).
    assert len({keys[kind, 1.0] for kind in ("trained", *SCALINGS)}) == 1
    assert keys["none", 2.0] == keys["trained", 2.0]
    assert keys["dynamic", 2.0] == keys["ntk", 2.0]
    assert len({keys[kind, 2.0] for kind in SCALINGS}) == len(SCALINGS) - 1


def test_an_explicit_factor_is_not_mistaken_for_the_computed_one(make):
    scaling = {"kind": "yarn", "factor": 2.0, "original_length": 16}
    fields = {f"model__position__rope__scaling__{name}": value for name, value in scaling.items()}
    explicit = {"model__position__rope__scaling__attention_factor": 1.0}
    one, other = (make(eval__multiples=(2,), **fields, **more).config.model for more in (explicit, {}))
    assert scoring.function_key(one, 32) != scoring.function_key(other, 32)


@pytest.mark.parametrize("kind", ["none", "yarn", "dynamic"])
def test_answers_through_the_cache_are_the_teacher_forced_argmax(make, kind: str):
    run = make(eval__multiples=(2,), eval__scalings=(kind,), model__num_layers=2)
    variant = variants.variants(run.config)[1]
    prompts = batch(length=30)["tokens"]
    answers = scoring.answer(variant.model, run.params, prompts, max_new=2)
    whole = np.concatenate([prompts, answers], axis=1)
    _, likeliest = scoring.score(variant.model, run.params, {"tokens": whole[:, :30], "targets": whole[:, 1:31]})
    np.testing.assert_array_equal(likeliest[:, -1], answers[:, 0])
    _, likeliest = scoring.score(variant.model, run.params, {"tokens": whole[:, :31], "targets": whole[:, 1:]})
    np.testing.assert_array_equal(likeliest[:, -1], answers[:, 1])
