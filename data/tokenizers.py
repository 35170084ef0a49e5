"""Tokenizers: bytes, the text's characters, or a `tokenizer.json` read by the `tokenizers` library.

Each can be saved into a run directory and restored from there, so that a run needs nothing outside itself.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from configs.errors import UserError
from data.corpora import Corpus

SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "[EOS]", "<|im_end|>")


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
        vocab_size: ids are below it.
        separator: the id that stands between documents.
    """

    vocab_size: int
    separator: int

    def encode(self, text: str) -> np.ndarray:
        """Returns int32 ids [N]."""

    def decode(self, ids: Any) -> str:
        """Returns the text of ids; what is no valid text is shown as replacement characters."""

    def describe(self) -> dict[str, Any]:
        """Returns what identifies it: kind, vocab_size, sha256."""

    def save(self, folder: Path) -> None:
        """Writes it into a folder that `restore` reads."""


class Bytes:
    """UTF-8 bytes; documents are separated by byte 0, which text does not hold."""

    vocab_size = 256
    separator = 0

    def encode(self, text: str) -> np.ndarray:
        """Returns int32 ids [N]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, ids: Any) -> str:
        """Returns the text of ids."""
        return np.asarray(ids).astype(np.uint8).tobytes().decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        """Returns what identifies it."""
        return {"kind": "byte", "vocab_size": self.vocab_size, "sha256": hashlib.sha256(b"byte").hexdigest()}

    def save(self, folder: Path) -> None:
        """Writes it into a folder."""
        _write(folder, {"kind": "byte"})


class Characters:
    """The sorted characters of a text, as nanoGPT's character-level data sets number them.

    Documents are separated by a newline where the text has one, else by its first character.
    """

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.vocab_size = len(characters)
        self.separator = max(0, characters.find("\n"))
        self._ids = np.full(0x110000, -1, np.int32)
        self._ids[np.frombuffer(characters.encode("utf-32-le"), np.uint32)] = np.arange(len(characters))

    def encode(self, text: str) -> np.ndarray:
        """Returns int32 ids [N].

        Raises:
            UserError: the text has a character that this tokenizer does not know.
        """
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = self._ids[points]
        if ids.size and ids.min() < 0:
            unknown = chr(points[int(np.argmin(ids))])
            raise UserError(f"the character {unknown!r} is not among the {self.vocab_size} of this tokenizer")
        return ids

    def decode(self, ids: Any) -> str:
        """Returns the text of ids."""
        return "".join(self.characters[i] if 0 <= i < self.vocab_size else "\ufffd" for i in np.asarray(ids).tolist())

    def describe(self) -> dict[str, Any]:
        """Returns what identifies it."""
        digest = hashlib.sha256(self.characters.encode()).hexdigest()
        return {"kind": "char", "vocab_size": self.vocab_size, "sha256": digest}

    def save(self, folder: Path) -> None:
        """Writes it into a folder."""
        _write(folder, {"kind": "char", "characters": self.characters})


class File:
    """A `tokenizer.json`, read by the `tokenizers` library; documents are separated by its end-of-text token."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Library

        self.path = path
        try:
            self._library = Library.from_file(str(path))
        except Exception as error:
            raise UserError(f"data.tokenizer = {str(path)!r}: cannot be read as a tokenizer.json: {error}") from error
        self.vocab_size = self._library.get_vocab_size()
        if not self.vocab_size:
            raise UserError(f"data.tokenizer = {str(path)!r}: has no tokens")
        known = (self._library.token_to_id(token) for token in SEPARATORS)
        self.separator = next((token for token in known if token is not None), 0)

    def encode(self, text: str) -> np.ndarray:
        """Returns int32 ids [N]."""
        return np.asarray(self._library.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Any) -> str:
        """Returns the text of ids."""
        return self._library.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        """Returns what identifies it."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return {"kind": "file", "vocab_size": self.vocab_size, "sha256": digest}

    def save(self, folder: Path) -> None:
        """Writes it into a folder."""
        _write(folder, {"kind": "file"})
        if (folder / "tokenizer.json").absolute() != self.path.absolute():
            shutil.copyfile(self.path, folder / "tokenizer.json")


def _write(folder: Path, values: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kind.json").write_text(json.dumps(values), encoding="utf-8")


def load(data: ConfigDict, corpus: Corpus) -> Tokenizer:
    """Returns the tokenizer that `config.data.tokenizer` names: byte, char (of this corpus), or a file.

    Raises:
        UserError: no such file, or it cannot be read.
    """
    if data.tokenizer == "byte":
        return Bytes()
    if data.tokenizer == "char":
        seen: set[str] = set()
        for split in (corpus.train, corpus.validation):
            for text in split:
                seen.update(text)
        return Characters("".join(sorted(seen)))
    path = Path(data.tokenizer)
    if not path.is_file():
        raise UserError(f"data.tokenizer = {data.tokenizer!r}: must be byte, char or the path of a tokenizer.json")
    return File(path)


def restore(folder: str | Path) -> Tokenizer:
    """Returns the tokenizer saved in a folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = Path(folder) / "kind.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = values["kind"]
        if kind == "byte":
            return Bytes()
        if kind == "char":
            return Characters(values["characters"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: holds no tokenizer ({type(error).__name__}: {error})") from error
    return File(Path(folder) / "tokenizer.json")
