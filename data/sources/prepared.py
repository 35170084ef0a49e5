"""Files of text, written once as a TFDS data set in the cache.

The entry's key covers the files' content: a changed file gives a new entry, so stale data cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from configs.errors import UserError
from data import cache, documents
from data.corpora import FORMAT, Corpus, digest
from data.documents import Document, SourceFile

if TYPE_CHECKING:
    from data.tfds_sets import Texts

LISTED = 16  # up to this many files are listed in a fingerprint; of more, only their number and common hash
Read = Callable[[SourceFile], Iterable[Document]]


@dataclass(frozen=True)
class Whole:
    """Documents that all belong to one split.

    Attributes:
        key: identifies the content.
        texts: the documents.
        source, files: as in a fingerprint.
        field: of the config, with its value, for messages.
        duplicates, skipped: numbers of documents left out.
    """

    key: str
    texts: Texts
    source: str
    files: int
    field: str
    duplicates: int = 0
    skipped: int = 0


class EmptySplit(UserError):
    """The files have no text, or too little for two splits."""


def open_prepared(
    source: str,
    files: Sequence[SourceFile],
    read: Read,
    split: str,
    train_share: float,
    cache_dir: str,
    *settings: str,
) -> Corpus:
    """Returns the corpus of files that are divided into two splits.

    Args:
        source: its name.
        files: sorted by name.
        read: a file's documents.
        split: hash or first, see `data.split`.
        train_share: see `data.train_share`.
        cache_dir: see `data.cache`.
        settings: everything else that affects the documents.

    Raises:
        EmptySplit: one of the two would be empty.
    """
    from data import tfds_sets

    identity = [[file.name, file.size, file.sha256] for file in files]
    key = digest([FORMAT, source, split, train_share, settings, identity])
    folder = cache.private_folder(cache_dir, "corpora") / f"{source}-{key[:20]}"
    cache.entry(folder, lambda work: _prepare(work, source, files, read, split, train_share))
    manifest = json.loads((folder / "manifest.json").read_text())
    if len(manifest["listing"]) > LISTED:
        del manifest["listing"]
    train, validation = tfds_sets.read_prepared(folder)
    return Corpus(key, train, validation, manifest, cache_dir)


def whole(source: str, files: Sequence[SourceFile], read: Read, data: ConfigDict, field: str) -> Whole:
    """Returns the documents of files that all belong to one split; `field` names them in messages.

    Raises:
        UserError: the files have no text.
    """
    from data import tfds_sets

    identity = [[file.name, file.size, file.sha256] for file in files]
    key = digest([FORMAT, source, "whole", data.field, identity])
    folder = cache.private_folder(data.cache_dir, "corpora") / f"{source}-{key[:20]}"
    try:
        cache.entry(folder, lambda work: _prepare(work, source, files, read, "whole", 1.0))
    except EmptySplit as error:
        raise UserError(f"{files[0].path.parent}: {error}") from error
    manifest = json.loads((folder / "manifest.json").read_text())
    (texts,) = tfds_sets.read_prepared(folder, ("train",))
    left_out = {name: manifest[name] for name in ("duplicates", "skipped")}
    return Whole(key, texts, source, manifest["files"], field, **left_out)


def _prepare(
    folder: Path, source: str, files: Sequence[SourceFile], read: Read, split: str, train_share: float
) -> None:
    """Writes the TFDS data set and `manifest.json`, in two passes, so that at most one file is in memory."""
    from data import tfds_sets

    plan = _plan(files, read, split, train_share)
    names = ("train",) if split == "whole" else ("train", "validation")
    tally = {name: {"documents": 0, "text_bytes": 0} for name in names}
    content = {name: hashlib.sha256() for name in tally}

    def generate(name: str) -> Iterator[Document]:
        for file in files:
            for document in read(file):
                # Missing from the plan: a duplicate. Text before the cut trains, after it validates.
                cut = plan.cuts.get(document.name)
                text = "" if cut is None else document.text[:cut] if name == "train" else document.text[cut:]
                if text:
                    encoded = text.encode()
                    tally[name]["documents"] += 1
                    tally[name]["text_bytes"] += len(encoded)
                    content[name].update(f"{document.name}\0{len(encoded)}\0".encode() + encoded)
                    yield Document(document.name, text)

    tfds_sets.write(folder, {name: partial(generate, name) for name in tally})
    manifest = {
        "source": source,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "sha256": _sha256_of_all(files),
        "documents": {name: counts["documents"] for name, counts in tally.items()},
        "text_bytes": {name: counts["text_bytes"] for name, counts in tally.items()},
        "documents_sha256": digest({name: content[name].hexdigest() for name in content}),
        "split": {"kind": plan.kind, "train_share": train_share},
        "duplicates": plan.duplicates,
        "skipped": plan.skipped,
        "listing": [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in files],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


@dataclass
class _Plan:
    kind: str  # hash, first, or whole (one split)
    cuts: dict[str, int]  # by document: how many of its characters train
    duplicates: int
    skipped: int  # files without a document


def _plan(files: Sequence[SourceFile], read: Read, split: str, train_share: float) -> _Plan:
    """Assigns documents to the train and validation splits.

    Raises:
        EmptySplit: one of the two would be empty.
    """
    lengths: dict[str, int] = {}
    seen: set[bytes] = set()
    duplicates = skipped = 0
    for file in files:
        empty = True
        for document in read(file):
            empty = False
            content = hashlib.sha256(document.text.encode()).digest()
            if content in seen:
                duplicates += 1
                continue
            seen.add(content)
            lengths[document.name] = len(document.text)
        skipped += empty
    total = sum(lengths.values())
    if not total:
        raise EmptySplit(f"{len(files)} files have no text" if len(files) > 1 else "the file has no text")
    if split == "whole":
        return _Plan("whole", lengths, duplicates, skipped)
    if split == "hash" and len(lengths) > 1:
        trains = documents.split_by_hash(list(lengths), train_share)
        cuts = {name: lengths[name] if train else 0 for name, train in zip(lengths, trains, strict=True)}
        return _Plan("hash", cuts, duplicates, skipped)
    train = int(train_share * total)
    if not 0 < train < total:
        name = "train" if train == 0 else "validation"
        raise EmptySplit(
            f"the {name} split is empty (train_share = {train_share} of {total} characters); more text is needed"
        )
    cuts, before = {}, 0
    for name, length in lengths.items():
        cuts[name] = min(max(train - before, 0), length)
        before += length
    return _Plan("first", cuts, duplicates, skipped)


def _sha256_of_all(files: Sequence[SourceFile]) -> str:
    if len(files) == 1:
        return files[0].sha256
    total = hashlib.sha256()
    for file in files:
        total.update(file.path.read_bytes())
    return total.hexdigest()
