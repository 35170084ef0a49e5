"""Sixteen times the training length: whatever trained at one runs there, for no row holds more than a batch did."""

import jax
import jax.numpy as jnp
import pytest

from eval import variants
from eval.cost import programs
from eval.quality import scoring
from models.decoding import decode
from models.positions import stretched
from training.step import train_step as steps

LENGTH, ROWS = 64, 16


@pytest.fixture
def config(make):
    """Of a model at the batch that it trains with; a row of 16 times the length holds as many tokens."""
    return lambda kind: (
        make(
            model__position__kind=kind,
            model__width=32,
            model__num_layers=2,
            data__length=LENGTH,
            data__batch_size=ROWS,
            eval__batch_size=ROWS,
            eval__multiples=(16,),
        ).config
    )


@pytest.mark.parametrize("kind", ["rope", "t5"])
def test_sixteen_times_the_length_takes_less_memory_than_training_at_one(config, kind: str):
    """By XLA's account of the compiled programs: scores at 16x, and a greedy answer through the KV cache."""
    given = config(kind)
    (variant,) = variants.variants(given)
    rows = variants.rows_at(variant.length, LENGTH, ROWS)
    assert (rows, variant.length) == (1, 16 * LENGTH)
    params = steps.abstract(given).params
    trained = programs.analysis(steps.lower(given).compile())
    batch = {name: jax.ShapeDtypeStruct((rows, variant.length), jnp.int32) for name in ("tokens", "targets")}
    changed, frequencies = stretched.share(variant.model, variant.length)
    graph = scoring.graphdef(changed)
    scored = scoring._score.lower(
        scoring._Graph(graph), params, batch, given.model.vocab_size, frequencies, None
    ).compile()
    prompt = jax.ShapeDtypeStruct((rows, variant.length - 4), jnp.int32)
    answered = decode._generate.lower(graph, 4, params, prompt, None, None, None, frequencies).compile()
    for program in (scored, answered):
        assert programs.analysis(program)["peak"] < 0.6 * trained["peak"]
