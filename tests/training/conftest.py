import random
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from configs import base, cli

WORDS = "the of and to in is you that it he was for on are as with his they at be this from have or by one had".split()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> str:
    """A file of 60,000 characters of words drawn by a fixed seed."""
    path: Path = tmp_path_factory.mktemp("text") / "words.txt"
    draw = random.Random(0)
    path.write_text(" ".join(draw.choice(WORDS) for _ in range(15_000)))
    return str(path)


@pytest.fixture(scope="session")
def make_tiny(text: str):
    """Makes a config of a few thousand parameters over that file, with dotted overrides (`__` for a dot)."""

    def make(**overrides) -> ConfigDict:
        config = base.get_config()
        values = {
            "model.width": 16,
            "model.num_layers": 2,
            "model.num_heads": 2,
            "data.path": text,
            "data.split": "first",
            "data.tokenizer": "char",
            "data.length": 16,
            "data.batch_size": 4,
            "budget.amount": 12,
            "optimizer.learning_rate": 1e-2,
            "optimizer.warmup_steps": 4,
            "checkpoint.every_steps": 4,
            "log.every_steps": 3,
            "log.tensorboard": False,
            "eval.every_steps": 6,
            "eval.tokens": 512,
            "eval.batch_size": 8,
        }
        cli.apply(config, values | {name.replace("__", "."): value for name, value in overrides.items()})
        return config

    return make


@pytest.fixture
def tiny(make_tiny):
    return make_tiny
