"""Our side: the programs of train.py and eval.generate."""

import itertools
import sys
from typing import Any

from bench.speed.cases import Case
from bench.speed.serving import Work, cores, serve

if __name__ == "__main__":
    cores(int(sys.argv[1]))

import jax
import numpy as np
from ml_collections import ConfigDict

from configs import base, validate
from models import initialise
from models.decoding import decode
from training.runtime import compilation
from training.step import train_step


def config_of(case: Case) -> ConfigDict:
    """Returns a case as one of our configs, resolved."""
    config = base.get_config()
    config.model.update(
        width=case.width,
        num_layers=case.layers,
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        mlp_width=case.mlp,
        vocab_size=case.vocab,
        dtype=case.dtype,
    )
    config.data.length, config.data.batch_size = case.length, case.batch
    config.data.weights.text, config.data.weights.mqar = 0.0, 1.0  # so that the vocabulary can have any size
    return validate.resolve(config)


def batches(case: Case) -> list[dict[str, np.ndarray]]:
    """Returns a few random batches in the form of the data pipeline."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, case.vocab, (4, case.batch, case.length + 1), dtype=np.int32)
    ones = np.ones((case.batch, case.length), np.float32)
    return [{"tokens": rows[:, :-1].copy(), "targets": rows[:, 1:].copy(), "weights": ones} for rows in tokens]


def prepare(case: Case) -> Work:
    """Returns a case's work."""
    config = config_of(case)
    graphdef, params = initialise(config.model, 0)
    if case.kind == "decode":
        prompts = batches(case)[0]["tokens"]
        return lambda: jax.block_until_ready(decode.generate(graphdef, params, prompts, max_new=case.new))
    state: list[Any] = [params, train_step.initial_opt_state(config, params)]
    feed, key = itertools.cycle(batches(case)), jax.random.key(0)
    program = train_step.compiled(config, batches(case)[0])[0]

    def work() -> None:
        state[0], state[1], loss, _ = program(*state, next(feed), np.float32(1e-3), key)
        loss.block_until_ready()

    return work


if __name__ == "__main__":
    compilation.enable_cache()
    serve(prepare, {"device": jax.devices()[0].device_kind})
