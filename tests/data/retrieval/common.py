"""Tokenizers that can write every task, a text for haystacks, and tasks made from a few settings."""

import functools
import string
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as library

from data import retrieval, tokenizers
from data.retrieval import Draw, Rows, Task
from data.retrieval.haystacks import NOISE
from tests.data.common import settings, words
from tests.data.test_tokenizers import trained

TEXT = words(5, 3000) + ". He said: 4 + 5 = 9; #3!\n" + words(6, 1000)
SENTENCEPIECE = ("metaspace", "llama")
SQUAD = str(Path(__file__).parent / "squad.json")  # 48 paragraphs that a script made up
CHARACTERS = string.ascii_letters + string.digits + " .,:;#=-?\n+!'()"


class Stream:
    """A text as tokens, as `data.streams.TokenStream` gives them."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)


def sentencepiece(kind: str) -> str:
    """A tokenizer.json that puts a space before every text, as Metaspace does, or the normalizer of Llama 2."""
    made = library.Tokenizer(library.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if kind == "metaspace":
        made.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme="always")
    else:
        normalizers = library.normalizers
        made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    decoders = library.decoders
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = library.trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    # Lines, so that normalised text, which has no other borders, does not merge into whole sentences.
    made.train_from_iterator([*TEXT.split("."), *NOISE.split("."), *CHARACTERS], trainer)
    return made.to_str()


@functools.cache
def tokenizer(kind: str) -> Any:
    if kind == "byte":
        return tokenizers.Bytes()
    if kind in SENTENCEPIECE:
        return tokenizers.FromFile(sentencepiece(kind))
    return tokenizers.Characters(CHARACTERS) if kind == "char" else tokenizers.FromFile(trained(vocab_size=600))


def decoded(kind: str, ids: Any) -> str:
    """The text of tokens from the middle of a row, without what a decoder takes off or adds at a text's start."""
    if kind not in SENTENCEPIECE:
        return tokenizer(kind).decode(ids)
    return tokenizer(kind).decode([*tokenizer(kind).encode("\n"), *ids]).removeprefix("\n")


@functools.cache
def stream(kind: str) -> Stream:
    return Stream(tokenizer(kind).encode(TEXT))


def made(name: str, kind: str = "byte", **retrieval_settings: Any) -> Task:
    """Makes a task; settings are fields of `data.retrieval`."""
    if name == "qa":  # its questions and paragraphs fit rows of the training length alone
        retrieval_settings = {"questions": SQUAD, **retrieval_settings}
    lengths = {"data__length": 511} if name == "qa" else {}
    config = settings(**lengths, **{f"data__retrieval__{key}": value for key, value in retrieval_settings.items()})
    return retrieval.make(name, config, tokenizer(kind), stream(kind))


def drawn(task: Task, count: int = 3, *, seed: int = 0, held_out: bool = True, extra: int = 100, **more: Any) -> Rows:
    """Draws rows with `extra` tokens to spare beyond the shortest."""
    length = task.shortest(more.get("needles")) + extra
    return task.rows(Draw(seed, held_out=held_out), more.pop("first", 0), count, length=length, **more)
