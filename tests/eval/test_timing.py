"""The stopwatch: what it counts, never how fast this machine is."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.cost import timing


def test_warm_up_is_dropped_and_every_call_gets_the_last_result():
    seen = []

    def call(state: int) -> int:
        seen.append(state)
        time.sleep(0.3 if state < 2 else 0.06)
        return state + 1

    seconds = timing.measure(call, 0, repeats=3, warm_up=2)
    assert seen == [0, 1, 2, 3, 4]
    assert seconds.shape == (3,) and seconds.max() < 0.25


def test_short_calls_are_averaged():
    count = [0]

    def call(state: None) -> None:
        count[0] += 1
        time.sleep(0.001)

    seconds = timing.measure(call, None, repeats=2)
    assert count[0] > 20 and seconds.min() >= 0.001


def test_compilation_is_apart_and_compiled_code_runs():
    compiled, seconds = timing.compile_timed(jax.jit(lambda x: x * 2).lower(jnp.ones(3)))
    assert seconds > 0
    assert timing.measure(compiled, jnp.ones(3), repeats=2).shape == (2,)


def test_donated_state_is_threaded_through():
    compiled, _ = timing.compile_timed(jax.jit(lambda x: x + 1, donate_argnums=0).lower(jnp.zeros(8)))
    assert len(timing.measure(compiled, jnp.zeros(8), repeats=2)) == 2


def test_summary_is_the_median_with_quartiles():
    entry = timing.summary(np.array([1.0, 2.0, 4.0]), tokens=100, compile_seconds=7.0, batch_size=5)
    assert entry["tokens_per_second"] == 50 and entry["seconds"] == 2 and entry["repeats"] == 3
    assert entry["spread"] == pytest.approx([100 / 3, 100 / 1.5])
    assert entry["compile_seconds"] == 7 and entry["batch_size"] == 5


def test_no_repeats_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        timing.measure(lambda x: x, None, repeats=0)
