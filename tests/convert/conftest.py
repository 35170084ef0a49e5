from collections.abc import Callable
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from configs import base, cli, validate
from convert.writing import write_run
from models import initialise
from training.runtime import compilation


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> None:
    """Keeps compiled programs from one run of the tests to the next."""
    compilation.enable_cache()


def config_of(**overrides) -> ConfigDict:
    """Returns a resolved config of a few thousand parameters, with dotted overrides (`__` for a dot)."""
    config = base.get_config()
    values = {
        "model.vocab_size": 256,
        "model.width": 16,
        "model.num_layers": 2,
        "model.num_heads": 4,
        "model.init_std": 0.3,  # far from uniform, so that a wrong head shows
        "data.length": 16,
        "data.batch_size": 4,
        "budget.amount": 2,
        "optimizer.warmup_steps": 1,
        "log.tensorboard": False,
        "eval.tokens": 64,
        "eval.batch_size": 4,
        "eval.multiples": (1,),
    }
    cli.apply(config, values | {name.replace("__", "."): value for name, value in overrides.items()})
    return validate.resolve(config)


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> Path:
    from data.tokenizers import Bytes

    folder: Path = tmp_path_factory.mktemp("bytes") / "tokenizer"
    Bytes().save(folder)
    return folder


def written(folder: Path, tokenizer: Path, **overrides) -> Path:
    """Writes an untrained run into a folder, with dotted overrides."""
    config = config_of(**overrides)
    return write_run(folder, config, initialise(config.model, 0)[1], tokenizer_from=tokenizer, origin={"kind": "test"})


@pytest.fixture
def saved(tmp_path: Path, byte_tokenizer: Path) -> Callable[..., Path]:
    """Writes an untrained run into a directory of its own, `name`, with dotted overrides (`__` for a dot)."""
    return lambda name="source", **overrides: written(tmp_path / name, byte_tokenizer, **overrides)


@pytest.fixture(scope="session")
def source(tmp_path_factory, byte_tokenizer: Path) -> Path:
    """One untrained run, to be read only."""
    return written(tmp_path_factory.mktemp("source") / "run", byte_tokenizer)
