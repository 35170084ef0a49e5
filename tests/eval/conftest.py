import random
from collections.abc import Callable
from pathlib import Path

import pytest

from configs import base, cli, validate
from models import initialise
from training.run_directory.run import Run, open_data, open_tokenizer
from training.runtime import compilation

WORDS = "the of and to in is you that it he was for on are as with his they at be this from have or by one had".split()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> None:
    """Keeps compiled programs from one run of the tests to the next."""
    compilation.enable_cache()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A file of words drawn by a fixed seed."""
    path: Path = tmp_path_factory.mktemp("text") / "words.txt"
    draw = random.Random(0)
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(5_000)))
    return path


@pytest.fixture
def make(text: Path, tmp_path: Path) -> Callable[..., Run]:
    """Makes an untrained run of a few thousand parameters over that file, with dotted overrides (`__` for a dot)."""

    def made(**overrides) -> Run:
        values = {
            "model.width": 16,
            "model.num_layers": 1,
            "model.num_heads": 2,
            "model.init_std": 0.3,  # far from uniform, so that a wrong position or scaling shows
            "data.path": str(text),
            "data.split": "first",
            "data.length": 16,
            "data.batch_size": 4,
            "eval.batch_size": 8,
            "eval.tokens": 512,
            "eval.bootstrap": 50,
            "eval.multiples": (1, 2),
            "eval.retrieval.examples": 4,
            "eval.throughput.new_tokens": 3,
            "eval.throughput.repeats": 2,
        }
        config = base.get_config()
        cli.apply(config, values | {name.replace("__", "."): value for name, value in overrides.items()})
        config = validate.resolve(config)
        corpus = open_data(config)
        tokenizer = open_tokenizer(config, corpus)
        if tokenizer is not None:
            config.model.vocab_size = config.model.vocab_size or tokenizer.vocab_size
        graphdef, params = initialise(config.model, 0)
        return Run(tmp_path, config, graphdef, params, tokenizer, 0)

    return made


RECALL = {"data__weights__text": 0.0, "data__weights__mqar": 1.0, "data__length": 15, "data__mqar__pairs": 4}


@pytest.fixture
def recall_run(make) -> Callable[..., Run]:
    """Makes an untrained run on key-value recall alone: 4 pairs in 15 tokens."""
    return lambda **overrides: make(**{**RECALL, **overrides})
