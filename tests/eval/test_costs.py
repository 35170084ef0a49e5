"""Throughput and memory: well-formed, and arithmetic that is known; never how fast this machine is."""

import jax
import numpy as np
import pytest

from configs.errors import UserError
from eval.cost import memory, programs, throughput
from eval.progress import Quiet
from models import counting
from models.decoding import decode
from models.decoding.kv_cache import KVCache


def test_throughput_is_well_formed(make):
    run = make(eval__throughput__batch_size=2)
    before = jax.tree.map(np.array, run.params)
    result = throughput.evaluate(run, Quiet())
    for name in ("train", "prefill", "decode"):
        part = result[name]
        low, high = part["spread"]
        assert 0 < low <= part["tokens_per_second"] <= high
        assert part["seconds"] > 0 and part["compile_seconds"] >= 0 and part["repeats"] == 2
        assert part["kernel"] in ("reference", "blocked", "xla", "blocked+reference", "reference+blocked")
    assert result["train"]["batch_size"] == result["prefill"]["batch_size"] == 2
    assert result["decode"]["batch_size"] == 1 and result["decode"]["new_tokens"] == 3
    assert result["train"]["tokens_per_second"] == pytest.approx(2 * 16 / result["train"]["seconds"])
    assert result["device"]["platform"] == "cpu" and result["attention_kernel"] == result["train"]["kernel"]
    assert result["settings"]["shape"]["capacity"] == 19
    jax.tree.map(np.testing.assert_array_equal, before, run.params)  # timing a step must not train the run


def test_the_kernel_is_the_one_in_the_program(make):
    for kernel in ("reference", "blocked"):
        run = make(model__attention__kernel=kernel)
        assert programs.kernels_in(programs.lower_train_step(run.config)) == kernel


def test_the_steps_that_are_timed_are_those_of_generation(make):
    run = make(model__num_layers=2, eval__throughput__decode_batch_size=2, eval__throughput__new_tokens=5)
    prompts = np.random.default_rng(0).integers(0, 256, (2, 16)).astype(np.int32)
    cache = KVCache.create(run.config.model, 2, programs.shape(run.config).capacity)
    logits, cache = decode.prefill(run.graphdef, run.params, cache, prompts)
    first = np.asarray(logits).argmax(-1).astype(np.int32)
    slots = np.asarray(cache.segments), np.asarray(cache.positions)  # the steps are given the cache itself
    steps, after = programs.decode_steps(run.graphdef, 5, run.params, cache, first)
    assert int(after.length) == 21
    whole = decode.generate(run.graphdef, run.params, prompts, max_new=6)
    np.testing.assert_array_equal(np.concatenate([first[:, None], steps], axis=1), whole)
    blank = programs.filled_cache(run.config)
    assert int(blank.length) == 16 and blank.capacity == 21
    np.testing.assert_array_equal(blank.segments, slots[0])
    np.testing.assert_array_equal(blank.positions, slots[1])


def test_memory_by_formula_and_as_compiled(make):
    run = make(model__num_kv_heads=1)
    result = memory.evaluate(run, Quiet())
    leaves = jax.tree.leaves(run.params)
    parameters = sum(leaf.size for leaf in leaves) * 4
    formula = result["formula"]
    assert formula["parameters"] == formula["gradients"] == parameters
    assert 2 * parameters <= formula["optimizer"] <= 2 * parameters + 64
    # 2 (keys and values) x 1 layer x 1 head x 8 x 4 bytes; for 16 + 3 tokens of one row.
    assert formula["kv_bytes_per_token"] == 64 and formula["kv_cache"] == 64 * 19
    assert formula["kv_cache"] == KVCache.create(run.config.model, 1, 19).nbytes
    for part in result["compiled"].values():
        assert part["peak"] == part["argument"] + part["output"] + part["temp"] - part["alias"]
    step = result["compiled"]["train_step"]
    # Arguments: parameters, two moments, the batch (3 x 4 x 16 numbers of 4 bytes) and some scalars.
    assert 0 <= step["argument"] - (parameters + formula["optimizer"] + 768) < 256
    assert step["alias"] >= parameters + 2 * parameters  # parameters and moments are donated
    assert result["compiled"]["prefill"]["argument"] >= parameters
    assert result["measured"] is None  # a CPU does not count


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "kib"),
    [(32, 32, 128, 512), (32, 8, 128, 128), (80, 8, 128, 320), (126, 8, 128, 504), (28, 4, 128, 56), (36, 8, 128, 144)],
)
def test_kv_bytes_of_published_models(make, layers: int, kv_heads: int, head_dim: int, kib: int):
    config = make().config.model
    config.num_layers, config.num_kv_heads, config.head_dim = layers, kv_heads, head_dim
    assert counting.kv_bytes_per_token(config, 2) == kib * 1024


def test_a_learned_table_bounds_decode_and_is_never_overrun(make):
    run = make(model__position__kind="learned")
    assert programs.shape(run.config).capacity == 16
    assert throughput.timed(run, "decode")["length"] == 13
    run.config.eval.throughput.length = 17
    with pytest.raises(UserError, match=r"eval.throughput.length = 17: the learned table has 16 positions"):
        programs.shape(run.config)
