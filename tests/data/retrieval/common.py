"""Tokenizers that can write every task, a text for haystacks, and tasks made from a few settings."""

import functools
import string
from typing import Any

import numpy as np

from data import retrieval, tokenizers
from data.retrieval import Draw, Rows, Task
from tests.data.common import settings, words
from tests.data.test_tokenizers import trained

TEXT = words(5, 3000) + ". He said: 4 + 5 = 9; #3!\n" + words(6, 1000)
CHARACTERS = string.ascii_letters + string.digits + " .,:;#=-?\n+!"


class Stream:
    """A text as tokens, as `data.streams.TokenStream` gives them."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)


@functools.cache
def tokenizer(kind: str) -> Any:
    if kind == "byte":
        return tokenizers.Bytes()
    return tokenizers.Characters(CHARACTERS) if kind == "char" else tokenizers.FromFile(trained(vocab_size=600))


@functools.cache
def stream(kind: str) -> Stream:
    return Stream(tokenizer(kind).encode(TEXT))


def made(name: str, kind: str = "byte", **retrieval_settings: Any) -> Task:
    """Makes a task; settings are fields of `data.retrieval`."""
    config = settings(**{f"data__retrieval__{key}": value for key, value in retrieval_settings.items()})
    return retrieval.make(name, config, tokenizer(kind), stream(kind))


def drawn(task: Task, count: int = 3, *, seed: int = 0, held_out: bool = True, extra: int = 100, **more: Any) -> Rows:
    """Draws rows with `extra` tokens to spare beyond the shortest."""
    length = task.shortest(more.get("needles")) + extra
    return task.rows(Draw(seed, held_out=held_out), more.pop("first", 0), count, length=length, **more)
