"""Small corpora and streams for the tests of the data room."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import base, validate
from data import packing

WORDS = "the a key value attention head window layer token length position rope mask cache über naïve 数 𝛼 ".split()


def config(cache: Path | None = None, **changes: Any) -> ConfigDict:
    """Returns a resolved config; `data__length=8` changes config.data.length."""
    found = base.get_config()
    if cache is not None:
        found.data.cache_dir = str(cache)
    for name, value in changes.items():
        with found.unlocked():
            node = found
            *path, last = name.split("__")
            for part in path:
                node = node[part]
            node[last] = value
    return validate.resolve(found)


def text(seed: int, words: int = 60) -> str:
    """Returns text that differs from seed to seed, with characters of one to four bytes."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words)) + f" {seed}\n"


def write_files(folder: Path, count: int, words: int = 60) -> dict[str, str]:
    """Writes text files, some in a sub-folder; returns their texts by relative name."""
    texts = {f"{'sub/' if index % 3 else ''}{index:03}.txt": text(index, words) for index in range(count)}
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode())
    return texts


class Stream:
    """Stands in for a TokenStream: documents of the given sizes, whose tokens are all different."""

    split = "train"

    def __init__(self, sizes: list[int], separated: bool = False) -> None:
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.tokens = np.arange(self.starts[-1], dtype=np.uint32)
        self.byte_counts = (self.tokens % 5).astype(np.uint32)
        self.separated = separated

    def __len__(self) -> int:
        return len(self.tokens)


def document_of(stream: Stream, token: int) -> int:
    """Returns the document that a token of a Stream belongs to."""
    return int(np.searchsorted(stream.starts, token, side="right")) - 1


def same(first: packing.Batch, second: packing.Batch) -> bool:
    """Whether two batches are equal in every array."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
