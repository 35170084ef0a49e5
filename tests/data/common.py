"""Configs, small corpora, and token streams whose every token is its own place: rows tell where they came from."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import base, cli, validate
from data import sources
from data.corpora import Corpus

WORDS = "the of and to in is you that it he was for on are as with his they at be this from have or by one had".split()
Batch = dict[str, np.ndarray]


def settings(**overrides: Any) -> ConfigDict:
    """Returns a resolved config of short rows, with dotted overrides (`__` for a dot)."""
    config = base.get_config()
    values: dict[str, Any] = {"data.length": 16, "data.batch_size": 4}
    cli.apply(config, values | {name.replace("__", "."): value for name, value in overrides.items()})
    return validate.resolve(config)


def words(seed: int, count: int) -> str:
    """Returns words drawn by a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def write(folder: Path, texts: dict[str, str | bytes]) -> Path:
    """Writes files and returns their folder."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def open_texts(path: str | Path, cache: Path, **overrides: Any) -> Corpus:
    """Prepares and opens files, with the cache in a folder of the test's own."""
    return sources.open_data(settings(data__path=str(path), data__cache_dir=str(cache), **overrides).data)


class Stream:
    """Documents of given sizes as a token stream: token i is i, and stands for i % 7 bytes."""

    bytes_per_token = None

    def __init__(self, sizes: Sequence[int], separated: bool = True, split: str = "train") -> None:
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.tokens = np.arange(self.starts[-1], dtype=np.uint32)
        self.byte_counts = self.tokens % 7
        self.separated = separated
        self.split = split

    def __len__(self) -> int:
        return len(self.tokens)

    def documents(self) -> list[range]:
        """Returns each document's tokens."""
        return [range(int(a), int(b)) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]


def scored(batch: Batch) -> list[int]:
    """Returns the targets that count."""
    return batch["targets"][batch["weights"] > 0].tolist()


def same(a: Batch, b: Batch) -> bool:
    """Whether two batches are equal in names, types and values."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)
