"""Tokenizers: bytes, characters, or a `tokenizer.json` of the `tokenizers` library.

A run directory contains its tokenizer (`save`, `restore`), so that it can be evaluated without the corpus.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from configs.documents import ordinary
from configs.errors import UserError

DESCRIPTION = "ablax_tokenizer.json"
HUGGING_FACE = "tokenizer.json"
# Names of the token that ends a document, in tokenizers in use.
SEPARATORS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")
BATCH = 256  # documents encoded at once
MOST_TOKENS = 2**24  # ids; the library keeps a table up to the largest, however sparse
MOST_GROWTH = 64.0  # maximum factor by which a tokenizer.json's replacements may lengthen a text

Encoded = tuple[np.ndarray, np.ndarray]


class Tokenizer(Protocol):
    """Attributes: `vocab_size`, one more than the largest id; `separator`, the id that ends a document, or None."""

    vocab_size: int
    separator: int | None

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [n], without special tokens."""

    def encode_all(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """Yields each text's ids, int32 [n], and the number of its UTF-8 bytes in each, int32 [n]."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of ids; invalid parts become the replacement character."""

    def describe(self) -> dict[str, Any]:
        """Returns the tokenizer's identity: kind, vocab_size, separator, and a hash of its content."""

    def save(self, folder: str | Path) -> None:
        """Writes what `restore` needs."""


class Bytes:
    """UTF-8 bytes, 256 tokens. Byte 0 ends documents; it practically never occurs in text."""

    vocab_size = 256
    separator: int | None = 0

    def encode(self, text: str) -> np.ndarray:
        """Returns the text's bytes, int32 [n]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode_all(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """Yields bytes and ones."""
        for text in texts:
            ids = self.encode(text)
            yield ids, np.ones_like(ids)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text; invalid UTF-8, and ids above 255, become the replacement character."""
        # 0xff never occurs in UTF-8.
        numbers = np.asarray(ids)
        return (
            np.where((numbers >= 0) & (numbers < 256), numbers, 0xFF)
            .astype(np.uint8)
            .tobytes()
            .decode(errors="replace")
        )

    def describe(self) -> dict[str, Any]:
        """Returns the identity."""
        return {"kind": "byte", "vocab_size": 256, "separator": 0}

    def save(self, folder: str | Path) -> None:
        """Writes the kind."""
        _write(folder, {"kind": "byte"})


class Characters:
    """One token per character of the text, sorted, as in nanoGPT's `shakespeare_char`; no separator."""

    separator: int | None = None

    def __init__(self, characters: Iterable[str]) -> None:
        self._characters = sorted(set(characters))
        self._codes = np.array([ord(c) for c in self._characters], np.uint32)
        self.vocab_size = len(self._characters)

    def encode(self, text: str) -> np.ndarray:
        """Returns ids, int32 [n].

        Raises:
            UserError: a character is not in the vocabulary.
        """
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = np.minimum(np.searchsorted(self._codes, codes), self.vocab_size - 1)
        unknown = np.flatnonzero(self._codes[ids] != codes)
        if unknown.size:
            raise UserError(
                f"the character {text[unknown[0]]!r} is not among the char tokenizer's {self.vocab_size}, those of the "
                "text it was made from"
            )
        return ids.astype(np.int32)

    def encode_all(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """Yields ids and the UTF-8 length of each character."""
        for text in texts:
            yield self.encode(text), utf8_lengths(text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text; ids outside the vocabulary become the replacement character."""
        known = self._characters
        return "".join(known[i] if 0 <= i < len(known) else "\ufffd" for i in ids)

    def describe(self) -> dict[str, Any]:
        """Returns the identity."""
        content = hashlib.sha256("".join(self._characters).encode()).hexdigest()
        return {"kind": "char", "vocab_size": self.vocab_size, "separator": None, "sha256": content}

    def save(self, folder: str | Path) -> None:
        """Writes the characters."""
        _write(folder, {"kind": "char", "characters": "".join(self._characters)})


class FromFile:
    """A `tokenizer.json` as Hugging Face writes it. Special tokens spelled out in a text are encoded as plain text.

    Args:
        content: of the file.
        separator: the id that ends a document; None: the token with one of the names in `SEPARATORS`, if any.
    """

    def __init__(self, content: str, separator: int | None = None) -> None:
        self._content = content
        self._given = separator
        import tokenizers as library  # imported here: building and measuring programs does not need it

        self._tokenizer = library.Tokenizer.from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.separator: int | None = separator
        if separator is None:
            self.separator = next((vocabulary[name] for name in SEPARATORS if name in vocabulary), None)
        elif separator < 0:
            raise ValueError(f"separator = {separator}: must not be negative")
        else:
            self.vocab_size = max(self.vocab_size, separator + 1)

    def token(self, number: int) -> str | None:
        """Returns the name of an id in the vocabulary, or None."""
        return self._tokenizer.id_to_token(number)

    def encode(self, text: str) -> np.ndarray:
        """Returns ids, int32 [n]."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_all(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """Yields ids and byte counts; a character split over several tokens counts with the first of them."""
        texts = iter(texts)
        while batch := list(islice(texts, BATCH)):
            for text, result in zip(batch, self._tokenizer.encode_batch(batch, add_special_tokens=False), strict=True):
                ids = np.array(result.ids, np.int32)
                ends = np.array([end for _, end in result.offsets], np.int64)
                yield ids, _byte_counts(text, ends)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text, special tokens included."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size]
        return self._tokenizer.decode(known, skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        """Returns the identity."""
        content = hashlib.sha256(self._content.encode()).hexdigest()
        return {"kind": "file", "vocab_size": self.vocab_size, "separator": self.separator, "sha256": content}

    def save(self, folder: str | Path) -> None:
        """Writes the kind, the separator if it was set, and tokenizer.json unchanged."""
        given = {} if self._given is None else {"separator": self._given}
        _write(folder, {"kind": "file", **given})
        (Path(folder) / HUGGING_FACE).write_text(self._content, encoding="utf-8", newline="")


def load(data: ConfigDict, corpus: Any, vocab_size: int | None = None) -> Tokenizer | None:
    """Returns the tokenizer that `config.data.tokenizer` names; None: ids of token files have no text.

    Args:
        data: of the config.
        corpus: what `sources.open_data` returned, or None.
        vocab_size: of the model, if known. Ids of token files are bytes only if there are 256 of them.

    Raises:
        UserError: no such file, no valid tokenizer.json, `char` without a text, or `none` with one.
    """
    of_text = corpus is None or corpus.holds_text
    if data.tokenizer == "none":
        if of_text:
            raise UserError("data.tokenizer = 'none': only for token files, but this run reads or writes text")
        return None
    if data.tokenizer == "byte" and not of_text and (data.vocab_size or vocab_size or Bytes.vocab_size) != 256:
        return None
    if data.tokenizer == "byte":
        return Bytes()
    if data.tokenizer == "char":
        if corpus is None:
            raise UserError("data.tokenizer = 'char': needs a text, and this run reads none")
        if not of_text:
            raise UserError("data.tokenizer = 'char': needs a text, and token files have none; use a tokenizer.json")
        characters: set[str] = set()
        for texts in (corpus.train, corpus.validation):
            for text in texts:
                characters.update(text)
        return Characters(characters)
    path = Path(data.tokenizer).expanduser()
    if (path / DESCRIPTION).is_file():
        return restore(path)
    if path.is_dir():
        path = path / HUGGING_FACE
    if not path.is_file():
        raise UserError(
            f"data.tokenizer = {data.tokenizer!r}: must be byte, char or a tokenizer.json, or none for "
            "token files; there is no such file"
        )
    return from_file(path)


def restore(folder: str | Path) -> Tokenizer:
    """Returns the tokenizer that `save` wrote to a folder.

    Raises:
        UserError: the folder has none.
    """
    path = Path(folder) / DESCRIPTION
    try:
        description = json.loads(ordinary(path).read_text(encoding="utf-8"))
        kind, separator = description["kind"], description.get("separator")
        if separator is not None and type(separator) is not int:
            raise ValueError(f"separator = {separator!r}: must be a whole number")
        if kind == "char":
            return Characters(description["characters"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: has no tokenizer ({type(error).__name__}: {error})") from error
    if kind == "byte":
        return Bytes()
    if kind == "file":
        return from_file(Path(folder) / HUGGING_FACE, separator)
    raise UserError(f"{path}: unknown kind {kind!r}")


def from_file(path: Path, separator: int | None = None) -> FromFile:
    """Returns the tokenizer of a tokenizer.json; `separator` as in `FromFile`.

    Raises:
        UserError: it is invalid.
    """
    try:
        with ordinary(path).open(encoding="utf-8", newline="") as file:
            content = file.read()
        _refuse_unbounded(content)
        return FromFile(content, separator)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path}: is not a tokenizer.json ({error})") from error


def _refuse_unbounded(content: str) -> None:
    """Raises ValueError if a tokenizer.json needs unbounded work: a huge id, or texts that grow."""
    values = json.loads(content)
    values = values if isinstance(values, dict) else {}
    model, added = values.get("model"), values.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [one.get("id") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    largest = max((number for number in ids if isinstance(number, int)), default=0)
    if largest >= MOST_TOKENS:
        raise ValueError(f"has the token id {largest}; ids must be below {MOST_TOKENS}")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = _growth(values.get(part))
        if growth > MOST_GROWTH:
            raise ValueError(
                f"its {part} can lengthen a text {growth:.3g} times; at most {MOST_GROWTH:g} times is allowed"
            )


def _growth(part: Any) -> float:
    """Returns the maximum factor by which a part of a tokenizer.json can lengthen a text, at least 1."""
    if not isinstance(part, dict):
        return 1.0
    inner = [part.get(name) for name in ("normalizers", "pretokenizers", "decoders")]
    result = math.prod(_growth(one) for several in inner if isinstance(several, list) for one in several)
    if part.get("type") == "Precompiled":
        return result * _precompiled_growth(part.get("precompiled_charsmap"))
    if part.get("type") == "Prepend" and isinstance(part.get("prepend"), str):
        return result * (1.0 + len(part["prepend"]))  # for a text of one character
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return result
    literal = pattern.get("String")
    if isinstance(literal, str) and literal:
        return result * max(1.0, len(content) / len(literal))
    expression = pattern.get("Regex")
    try:
        empty = not isinstance(expression, str) or re.search(expression, "") is not None
    except re.error:  # the library's expressions use another dialect
        empty = True
    return result * max(1.0, len(content) + empty)


def _precompiled_growth(charsmap: Any) -> float:
    """Returns the maximum factor by which SentencePiece's compiled normalization can lengthen a text, at least 1.

    It is base64 of a uint32 (little-endian, the bytes of a trie), the trie, and the replacements, each ended by a zero
    byte. At least one character becomes one replacement, so that the longest bounds the growth.

    Raises:
        ValueError: it does not have this form.
    """
    if charsmap is None or charsmap == "":
        return 1.0
    try:
        content = base64.b64decode(charsmap, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"precompiled_charsmap is not base64 ({error})") from error
    end = 4 + int.from_bytes(content[:4], "little")
    if len(content) < 4 or end > len(content):
        raise ValueError(f"precompiled_charsmap is truncated: {len(content)} bytes, expected at least {end}")
    longest = max(len(text.decode(errors="replace")) for text in content[end:].split(b"\0"))
    return float(max(1, longest))


def _write(folder: str | Path, description: dict[str, Any]) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def utf8_lengths(text: str) -> np.ndarray:
    """Returns the number of UTF-8 bytes of each character, int32 [len(text)]."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return (1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)).astype(np.int32)


def _byte_counts(text: str, ends: np.ndarray) -> np.ndarray:
    """Bytes of each token from the characters where tokens end; their sum is the text's bytes."""
    if not ends.size:
        return np.zeros(0, np.int32)
    before = np.concatenate([[0], np.cumsum(utf8_lengths(text))])
    ends = np.maximum.accumulate(ends)
    # What the tokenizer dropped at the end (such as a trailing space) counts with the last token.
    ends[-1] = len(text)
    return np.diff(before[ends], prepend=0).astype(np.int32)
